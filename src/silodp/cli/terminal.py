"""The one place where text for a terminal is made: names from files cannot steer it, and none is too plain.

Whoever names a file, a hospital or a tag may write escape sequences into it, which would clear the screen or
rewrite a line above. A terminal that knows ASCII only gets words for signs, never an error.
"""

from __future__ import annotations

import codecs
import logging
import os
import sys
from collections.abc import Iterable
from typing import IO, Any

from silodp.errors import printable

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
    """Prints a text of one or several lines."""
    print(printable(text), end=end, file=sys.stderr if error else sys.stdout, flush=error)


def complain(text: object) -> None:
    """What went wrong, in one line on standard error."""
    print(f"silodp: {printable(text, one_line=True)}", file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> Any:
    """A Rich console for tables and bars: text is never markup, and is made printable as it is drawn."""
    from rich.console import Console
    from rich.segment import Segment

    class _Console(Console):
        def render_str(self, text: str, **how: Any) -> Any:
            # Before anything is measured: words are longer than signs, and columns would not be straight.
            return super().render_str(as_encoded(text, self.encoding), **how)

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(
                segment if segment.control else Segment(printable(segment.text), segment.style)
                for segment in buffer
            )

    return _Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def prepare_streams() -> None:
    """Signs that a terminal cannot show become words; log lines are made printable."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="silodp")
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("silodp: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def flush(stream: IO[str]) -> None:
    """Raises OSError here, not when Python ends, where the last of it cannot be written."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), one_line=True)


def as_encoded(text: str, encoding: str | None) -> str:
    """With words in place of the signs that an encoding lacks."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "silodp").decode(encoding)


def _in_words(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    signs = error.object[error.start : error.end]
    words = (_ASCII.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs)
    return "".join(words), error.end


codecs.register_error("silodp", _in_words)
