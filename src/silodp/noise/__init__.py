"""The only place of chance: random streams, and the lattice that noise is drawn on."""
