"""A contact sheet as one picture by Matplotlib: text, a mosaic of images for each hospital, text."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.report.frame import WARNING
from silodp.report.pictures import Block, Gallery

WIDTH, DPI = 13.0, 110  # inches, and dots an inch
LINE, CAPTION = 0.2, 0.16  # inches of a line of text, and of one below an image
LETTERS = 130  # of a line of text, at most
KEYS = 4  # of the legend, side by side
COLUMNS = 12  # images side by side, at most
GAP = 12  # pixels between images


def as_png(title: str, facts: Sequence[str], gallery: Gallery, notes: Sequence[str]) -> bytes:
    """The contact sheet as PNG; names are never parsed as markup."""
    from matplotlib.figure import Figure

    above, below = _lines(facts), _lines([*notes, WARNING])
    pictures = [one for block in gallery.blocks for one in block.pictures]
    columns = min(COLUMNS, max((len(block.pictures) for block in gallery.blocks), default=1))
    wide = GAP + max((one.width for one in pictures), default=1)
    inch = wide / min(0.96 * WIDTH / columns, 1.5)  # in pixels of an image
    letters = int(12 * wide / inch)  # of a caption's line
    room = max((len(one.caption) for one in pictures), default=0) * CAPTION * inch
    high = GAP + max((one.height for one in pictures), default=1) + round(room)
    mosaics = [_mosaic(block, columns, wide, high) for block in gallery.blocks]
    heights = [
        LINE * (4 + len(above) + 1.2 * -(-len(gallery.legend) // KEYS)),
        *(len(mosaic) / inch + 1.5 * LINE for mosaic in mosaics),
        LINE * (1 + len(below)),
    ]
    figure = Figure(figsize=(WIDTH, sum(heights)), dpi=DPI)
    frame = {"left": 0.02, "right": 0.98, "top": 1, "bottom": 0, "hspace": 0}
    first, *middle, last = figure.subplots(len(heights), height_ratios=heights, gridspec_kw=frame)
    for axes in (first, *middle, last):
        axes.axis("off")
    _write(first, [title], size=18, down=0.5)
    _write(first, above, down=2.2)
    _draw_legend(first, gallery)
    for axes, mosaic, block in zip(middle, mosaics, gallery.blocks, strict=True):
        axes.imshow(mosaic, interpolation="nearest")
        axes.set_anchor("SW")
        axes.set_title(
            _short(f"{block.name}: {block.about}", LETTERS),
            loc="left", fontsize=10, fontweight="bold", parse_math=False,
        )  # fmt: skip
        for number, one in enumerate(block.pictures):
            row, column = divmod(number, columns)
            caption = "\n".join(_short(line, letters) for line in one.caption)
            place = (column * wide, row * high + one.height + 3)
            axes.text(*place, caption, va="top", fontsize=8, parse_math=False)
    _write(last, below)
    content = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(content, format="png")
    return content.getvalue()


def _lines(paragraphs: Sequence[str]) -> list[str]:
    return [line for text in paragraphs for line in textwrap.wrap(text, LETTERS)]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _write(axes: Any, lines: Sequence[str], *, size: float = 10, down: float = 0) -> None:
    """Writes lines at the left, `down` lines below the top."""
    axes.annotate(
        "\n".join(lines), (0, 1), (0, -down * LINE * 72), xycoords="axes fraction",
        textcoords="offset points", va="top", fontsize=size, linespacing=1.3, parse_math=False,
    )  # fmt: skip


def _draw_legend(axes: Any, gallery: Gallery) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=ink.colour, edgecolor=ink.stripe, hatch="||", label=_short(name, 40))
        for name, ink in gallery.legend
    ]
    key = axes.legend(handles=handles, loc="lower left", ncols=KEYS, frameon=False, borderaxespad=1.5)
    for text in key.get_texts():
        text.set_parse_math(False)


def _mosaic(block: Block, columns: int, wide: int, high: int) -> NDArray[np.uint8]:
    """The images of a hospital in rows on white, with space for captions."""
    rows = -(-len(block.pictures) // columns)
    mosaic = np.full((max(1, rows * high), columns * wide, 3), 255, np.uint8)
    for number, one in enumerate(block.pictures):
        top, left = number // columns * high, number % columns * wide
        mosaic[top : top + one.height, left : left + one.width] = one.pixels
    return mosaic
