"""The error for users, which names the field, the value and the way out, and helpers for its text."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

BEGINNING, END = 2000, 500  # characters kept of a long message; the way out is at its end
LONGEST = 200  # characters of a value in a message

# C0 and C1 controls, marks that change the writing direction, line separators, and lone surrogates, which no
# encoding can write. Tabs and newlines are allowed in texts of several lines.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_LINES = re.compile(f"[{_CONTROLS}]")
_ONE_LINE = re.compile(f"[\t\n{_CONTROLS}]")


class InputError(ValueError):
    """Invalid input. The command line prints the message and exits with code 2.

    The message is one line, whatever names and values it contains; a very long one loses its middle.
    """

    def __init__(self, text: str) -> None:
        line = printable(text, one_line=True)
        super().__init__(line if len(line) <= BEGINNING + END else f"{line[:BEGINNING]} … {line[-END:]}")


def cannot_write(path: object, error: OSError) -> InputError:
    """The error for a full disk or a folder without write permission."""
    return InputError(
        f"{path}: cannot be written ({error.strerror or error}); make room, or give a folder elsewhere"
    )


def printable(text: object, *, one_line: bool = False) -> str:
    """Escapes control characters (`\\x1b`), and with `one_line` also tabs and newlines."""
    return (_ONE_LINE if one_line else _LINES).sub(_shown, str(text))


def _shown(found: re.Match[str]) -> str:
    """One control character as Python writes it in a string."""
    return found[0].encode("unicode_escape").decode()


def short(value: Any) -> str:
    """`repr` of a value, shortened in the middle where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a huge number, or very deep nesting
        return "a value too large to show"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """A suggestion for the end of a message: the known name closest to `word`; empty where none is close.

    A name without its sections, such as `noise_multiplier`, counts as close.
    """
    text, names = str(word)[:LONGEST], list(map(str, known))
    ends = [name for name in names if name.endswith(f".{text}")]
    found = ends or difflib.get_close_matches(text, names, n=1, cutoff=0.7)
    return f"; did you mean {found[0]}?" if found else ""
