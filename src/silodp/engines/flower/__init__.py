"""Flower as a carrier of bytes between hospitals and coordinator.

`link` is a hospital's end, `grid` the coordinator's, `superlink` and `proxy` what stands between them. All
that is used of Flower's inside is imported in `internals`.
"""
