"""The common frame and style of all pages, and their template environment; without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from silodp.report import words
from silodp.report.chart import draw, swatch
from silodp.runs.promise import chance, neighbours_in_words
from silodp.runs.wording import sentence, show_epsilon

HERE = Path(__file__).parent
WARNING = "This page shows patients' images: keep it, and pass it on, only as you would those."
Tile = tuple[str, str, str]
"""A headline number: name, value, remark."""


@dataclass(frozen=True)
class Page:
    html: str
    shows_patients: bool


def render(
    template: str,
    generator: str,
    title: str,
    shows_patients: bool = False,
    folder: Path = HERE,
    **content: Any,
) -> Page:
    """Renders a page in the common frame, with a warning if it shows patients' images.

    Args:
        template: a file in `folder`, which extends frame.html.
        generator: command that makes such pages.
        content: variables of the template; all of it is escaped.
    """
    from silodp import __version__

    warning = WARNING if shows_patients else ""
    text = environment(folder).get_template(template)
    html = text.render(
        generator=generator, version=__version__, style=style(), title=title, warning=warning, **content
    )
    return Page(html.strip() + "\n", shows_patients)


@cache
def style() -> str:
    """The style sheet, which is inlined in every page."""
    return (HERE / "style.css").read_text(encoding="utf-8")


@cache  # so that templates are compiled once
def environment(folder: Path = HERE) -> Any:
    """A template environment for a folder, with the common frame and parts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader([folder, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals.update(draw=draw, swatch=swatch, chance=chance, neighbours_in_words=neighbours_in_words)
    found.globals.update(show_epsilon=show_epsilon, several=words.several)
    found.filters["sentence"] = sentence
    return found
