"""A run from its experiment to its folder: build, train, resume, record, verify."""
