"""Randomness: random streams, and the lattice on which noise is drawn."""
