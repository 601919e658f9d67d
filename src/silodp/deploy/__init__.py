"""Federations across machines: keys, agreements, and the programs of the coordinator and the hospitals."""
