"""The one error a person is meant to read: it names the field, the value and the way out."""


class InputError(ValueError):
    """Something given to silodp cannot be used. The command line prints it and exits with 2."""
