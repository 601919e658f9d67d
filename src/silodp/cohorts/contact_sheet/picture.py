"""A contact sheet as one picture: strips of one width, one below the other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from silodp.cohorts.contact_sheet.sheet import LARGEST, TITLE, WARNING, Sheet
from silodp.cohorts.contact_sheet.thumbnail import SMALLEST, Ink, Thumbnail, png_bytes

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

WIDEST, NARROWEST, MARGIN, GAP = 1600, 960, 24, 12
BAR, SWATCH = 7, 26
TEXT, FAINT, PAPER = "#1a1a1a", "#595959", "#ffffff"


def fitting(each: int) -> int:
    """The size of thumbnails of which `each` fit side by side, unless they would be too small."""
    return min(LARGEST, max(128, (WIDEST - 2 * MARGIN + GAP) // each - GAP))


def as_png(sheet: Sheet, each: int) -> bytes:
    from PIL import Image

    widths = [thumbnail.pixels.shape[1] for block in sheet.blocks for thumbnail in block.thumbnails]
    cell = max(widths, default=SMALLEST) + GAP
    columns = min(each, (WIDEST - 2 * MARGIN + GAP) // cell)
    width = max(NARROWEST, columns * cell - GAP + 2 * MARGIN)
    strips = [(MARGIN, _words(TITLE, width, 26, bold=True))]  # each with the space above it
    strips += [(0, _words(fact, width, 15)) for fact in sheet.facts]
    strips += [(GAP, _legend(sheet, width))]
    for block in sheet.blocks:
        strips += [(2 * GAP, _words(block.name, width, 18, bold=True))]
        strips += [(0, _words(block.counts, width, 13, FAINT))]
        rows = range(0, len(block.thumbnails), columns)
        strips += [(6, _row(block.thumbnails[first : first + columns], width, cell)) for first in rows]
    strips += [(2 * GAP, _words(" ", width, 1))]
    strips += [(0, _words(note, width, 14)) for note in sheet.notes]
    strips += [(0, _words(WARNING, width, 13, FAINT))]
    page = Image.new("RGB", (width, sum(above + strip.height for above, strip in strips) + MARGIN), PAPER)
    top = 0
    for above, strip in strips:
        page.paste(strip, (0, top + above))
        top += above + strip.height
    return png_bytes(page)


def _canvas(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    from PIL import Image, ImageDraw

    strip = Image.new("RGB", (width, height), PAPER)
    return strip, ImageDraw.Draw(strip)


def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Matplotlib's font: Pillow's own has no accents, no Greek and no Cyrillic, which names may have."""
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", name), size)


def _words(text: str, width: int, size: int, colour: str = TEXT, bold: bool = False) -> Image.Image:
    """A paragraph, broken into lines."""
    font = _font(size, bold)
    share = (width - 2 * MARGIN) / max(1, font.getlength(text))  # of the text that fits into a line
    lines = [text] if share >= 1 else textwrap.wrap(text, max(1, int(0.9 * share * len(text))))
    height = round(1.45 * size)
    strip, draw = _canvas(width, height * len(lines))
    for number, line in enumerate(lines):
        draw.text((MARGIN, number * height), line, fill=colour, font=font)
    return strip


def _shortened(text: str, room: int, font: ImageFont.FreeTypeFont) -> str:
    """Cut off with … where it is too long."""
    whole = text
    while text and font.getlength(text if text == whole else text + "…") > room:
        text = text[:-1]
    return text if text == whole else text + "…"


def _legend(sheet: Sheet, width: int) -> Image.Image:
    font = _font(15, bold=True)
    left, row, high = MARGIN, 0, 24
    places: list[tuple[int, int, str, Ink | None]] = []
    for name, ink in [(f"{sheet.key}:", None), *sheet.legend]:
        swatch = SWATCH + 8 if ink else 0
        text = _shortened(name, width - 2 * MARGIN - swatch, font)
        needed = swatch + round(font.getlength(text))
        if left + needed > width - MARGIN:
            left, row = MARGIN, row + 1
        places.append((left, high * row, text, ink))
        left += needed + 2 * GAP
    strip, draw = _canvas(width, high * (row + 1))
    for left, top, text, ink in places:
        if ink is not None:
            _bar(draw, ink, left, top + 3, SWATCH, 13)
        draw.text((left + (SWATCH + 8 if ink else 0), top), text, fill=TEXT, font=font)
    return strip


def _bar(draw: ImageDraw.ImageDraw, ink: Ink, left: int, top: int, width: int, height: int) -> None:
    draw.rectangle([left, top, left + width - 1, top + height - 1], fill=ink.colour)
    for stripe in range(8, width, 12):
        right = min(stripe + 4, width)
        draw.rectangle([left + stripe, top, left + right - 1, top + height - 1], fill=ink.stripe)


def _row(thumbnails: Sequence[Thumbnail], width: int, cell: int) -> Image.Image:
    """Thumbnails side by side, each with its bar and its caption."""
    from PIL import Image

    font = _font(13)
    high = max(thumbnail.pixels.shape[0] for thumbnail in thumbnails)
    strip, draw = _canvas(width, high + BAR + 50)
    lowest = high
    for column, thumbnail in enumerate(thumbnails):
        left, bottom = MARGIN + column * cell, thumbnail.pixels.shape[0]
        strip.paste(Image.fromarray(thumbnail.pixels), (left, 0))
        if thumbnail.ink is not None:
            _bar(draw, thumbnail.ink, left, bottom, thumbnail.pixels.shape[1], BAR)
            bottom += BAR
        for text, colour in ((thumbnail.caption, TEXT), (thumbnail.part, FAINT)):
            if text:
                draw.text((left, bottom + 3), _shortened(text, cell - GAP, font), fill=colour, font=font)
                bottom += 17
        lowest = max(lowest, bottom + 5)
    return strip.crop((0, 0, width, lowest))
