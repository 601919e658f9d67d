"""All text for a terminal is printed here: control characters are escaped, and ASCII terminals get words.

Names of files, hospitals and tags may hold escape sequences, which could clear the screen or hide a line.
A terminal that only knows ASCII gets words for symbols, never an error.
"""

from __future__ import annotations

import codecs
import logging
import os
import sys
from collections.abc import Iterable
from typing import IO, Any

from silodp.errors import printable
from silodp.files import to_json

_ASCII = {
    "ε": "eps", "δ": "delta", "σ": "sigma", "μ": "mu", "ξ": "xi", "φ": "phi", "λ": "lambda", "θ": "theta",
    "∞": "inf", "√": "sqrt ", "·": "*", "×": "x", "±": "+-", "≤": "<=", "≥": ">=", "−": "-", "–": "-",
    "—": "-", "…": "...", "«": '"', "»": '"', "‹": "<", "›": ">", "²": "^2", "→": "->",
    "η": "eta", "β": "beta", "τ": "tau", "ρ": "rho", "γ": "gamma", "α": "alpha", "ζ": "zeta", "Σ": "sum ",
    "Δ": "delta ", "Φ": "Phi", "∇": "grad ", "‖": "|", "←": "<-", "∝": "~", "≈": "~", "½": "1/2", "₁": "_1",
    "⌊": "floor(", "⌋": ")", "°": " degrees", "\u0303": "~", "\u0302": "^",
    "─": "-", "━": "-", "╸": "-", "╺": "-",
}  # fmt: skip


def say(text: object, *, end: str = "\n", error: bool = False) -> None:
    """Prints text of one or several lines, on standard error with `error`."""
    print(printable(text), end=end, file=sys.stderr if error else sys.stdout, flush=error)


def print_json(content: object) -> None:
    """Prints strict JSON on standard output."""
    print(to_json(content, indent=2))


def print_error(text: object) -> None:
    """Prints an error as one line on standard error."""
    print(f"silodp: {printable(text, one_line=True)}", file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> Any:
    """A Rich console for tables and bars that treats text as plain text and escapes control characters."""
    from rich.console import Console
    from rich.segment import Segment

    class _Console(Console):
        def render_str(self, text: str, **how: Any) -> Any:
            # Before widths are measured: words are longer than symbols.
            return super().render_str(as_encoded(text, self.encoding), **how)

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(
                segment if segment.control else Segment(printable(segment.text), segment.style)
                for segment in buffer
            )

    return _Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def prepare_streams() -> None:
    """Makes the standard streams write words for symbols they lack, and log lines printable."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="silodp")
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("silodp: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def flush(stream: IO[str]) -> None:
    """Flushes, and raises OSError here instead of at Python's exit where that fails."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), one_line=True)


def as_encoded(text: str, encoding: str | None) -> str:
    """The text with words for the symbols that the encoding lacks."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "silodp").decode(encoding)


def _symbols_as_words(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    symbols = error.object[error.start : error.end]
    words = (_ASCII.get(symbol) or symbol.encode("ascii", "backslashreplace").decode() for symbol in symbols)
    return "".join(words), error.end


codecs.register_error("silodp", _symbols_as_words)
