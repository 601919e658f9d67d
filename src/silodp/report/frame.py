"""The one frame and style of all pages, and the parts that they are made of; without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from silodp.report import words
from silodp.report.chart import draw, swatch
from silodp.runs.promise import chance, neighbours_in_words
from silodp.runs.wording import show_epsilon

HERE = Path(__file__).parent
WARNING = "This page shows patients' images: keep it, and pass it on, only as you would those."
Tile = tuple[str, str, str]
"""One of the few numbers that everybody wants: name, value, remark."""


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
    """A page in the one frame and style, which warns where it shows patients' images.

    Args:
        template: a file in `folder`, which extends frame.html.
        generator: which command makes such pages.
        content: what the template needs; all of it is escaped.
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
    """The style sheet that stands in every page."""
    return (HERE / "style.css").read_text(encoding="utf-8")


@cache  # templates are compiled once, however many pages follow
def environment(folder: Path = HERE) -> Any:
    """Templates of a folder, with the frame and the parts at hand."""
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
    found.filters["sentence"] = words.sentence
    return found
