"""Flower as a transport of bytes between hospitals and coordinator.

`link` is a hospital's end, `grid` the coordinator's, `superlink` and `proxy` are between them. All of
Flower's internals that are used are imported in `internals`.
"""
