"""The one error a person is meant to read: it names the field, the value and the way out."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

BEGINNING, END = 2000, 500  # characters; the way out stands at the end
LONGEST = 200  # characters of a value in an error

# C0 and C1 controls, what turns the direction of writing, what ends a line, and halves of pairs that no
# encoding can write. Tabs and ends of lines are meant where a text has several lines.
_STEERING = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_LINES = re.compile(f"[{_STEERING}]")
_ONE_LINE = re.compile(f"[\t\n{_STEERING}]")


class InputError(ValueError):
    """Something given to silodp cannot be used. The command line prints it and exits with 2.

    It is one line, whatever the names and values in it are; of a very long one the middle is left out.
    """

    def __init__(self, text: str) -> None:
        line = printable(text, one_line=True)
        super().__init__(line if len(line) <= BEGINNING + END else f"{line[:BEGINNING]} … {line[-END:]}")


def cannot_write(path: object, error: OSError) -> InputError:
    """A full disk, or a folder that may not be written to."""
    return InputError(
        f"{path}: cannot be written ({error.strerror or error}); make room, or give a folder elsewhere"
    )


def printable(text: object, *, one_line: bool = False) -> str:
    """Text whose control characters are shown (`\\x1b`) rather than sent; with `one_line` also line ends."""
    return (_ONE_LINE if one_line else _LINES).sub(_shown, str(text))


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    named = {9: "\\t", 10: "\\n", 13: "\\r"}
    return named.get(number) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")


def short(value: Any) -> str:
    """A value as it was given; of a long one the beginning and the end."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number too long to be written, brackets without end
        return "a value without end"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """For the end of an error: the known name that is nearest to what was written; empty where none is near.

    A name is near, too, where only the sections before it were left out.
    """
    text, names = str(word)[:LONGEST], list(map(str, known))
    ends = [name for name in names if name.endswith(f".{text}")]
    found = ends or difflib.get_close_matches(text, names, n=1, cutoff=0.7)
    return f"; did you mean {found[0]}?" if found else ""
