"""How fast this machine trains: silodp's rounds beside the same steps in a bare PyTorch loop."""
