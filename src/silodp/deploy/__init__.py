"""A federation across hospitals: keys, agreements, and the processes of each side."""
