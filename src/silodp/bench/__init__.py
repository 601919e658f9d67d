"""Benchmark: silodp's rounds against the same steps in a bare PyTorch loop."""
