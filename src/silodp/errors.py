"""The one error a person is meant to read: it names the field, the value and the way out."""

from silodp.terminal import printable

BEGINNING, END = 2000, 500  # characters; the way out stands at the end


class InputError(ValueError):
    """Something given to silodp cannot be used. The command line prints it and exits with 2.

    It is one line, whatever the names and values in it are; of a very long one the middle is left out.
    """

    def __init__(self, text: str) -> None:
        line = printable(text, one_line=True)
        super().__init__(line if len(line) <= BEGINNING + END else f"{line[:BEGINNING]} … {line[-END:]}")
