"""A contact sheet: a few images of every hospital on one page, with classes or masks marked.

The page may be shown to others, so it names hospitals and classes, but neither patients nor files.
"""

from __future__ import annotations

import re
import textwrap
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.synthetic import random_stream
from silodp.errors import InputError
from silodp.files import write_atomically

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

    from silodp.cohorts.partition import Placement
    from silodp.cohorts.store import Store

STREAM = 6  # of random numbers, apart from those of cohorts
SMALLEST, LARGEST = 96, 256  # pixels of a thumbnail's longer side
MOST_HOSPITALS, MOST_EACH = 40, 64
MOST_COUNTED = 12  # classes whose images are counted for every hospital
THICK = 2  # pixels of an outline
DASH = 6  # pixels of a dash where the outlines of several masks coincide
TITLE = "Contact sheet"
WARNING = "This page shows patients' images: keep it, and pass it on, only as you would those."

# Okabe and Ito's colours, which colour-blind people tell apart; without black, which is lost on dark images.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
STRIPES = (None, "#FFFFFF", "#000000")  # tell the second and the third seven from the first


class _Ink(NamedTuple):
    colour: str
    stripe: str


@dataclass(frozen=True)
class _Thumbnail:
    pixels: NDArray[np.uint8]
    caption: str
    part: str
    ink: _Ink | None


@dataclass(frozen=True)
class _Block:
    name: str
    counts: str
    thumbnails: tuple[_Thumbnail, ...]


@dataclass(frozen=True)
class _Sheet:
    facts: tuple[str, ...]
    key: str
    legend: tuple[tuple[str, _Ink], ...]
    blocks: tuple[_Block, ...]
    notes: tuple[str, ...]


def write_contact_sheet(
    store: Store, placement: Placement | None, out: Path, *, each: int = 8, seed: int = 0
) -> None:
    """Writes a page (.html) or a picture (.png) with up to `each` images of every hospital.

    Only the pixels of these images are read.

    Args:
        store: the decoded images.
        placement: who holds which; None puts all of them together.
        out: where to; its folder is made.
        each: images a hospital.
        seed: of the choice of images.
    """
    suffix = out.suffix.lower()
    if suffix not in (".html", ".png"):
        raise InputError(f"--out {out}: a contact sheet is a page or a picture; choose .html or .png")
    if not 1 <= each <= MOST_EACH:
        raise InputError(f"--each {each}: so many images a hospital cannot be shown; give 1 to {MOST_EACH}")
    if out.is_dir():
        raise InputError(f"--out {out}: a folder has this name; choose another one")
    if suffix == ".html":
        content = _as_html(_compose(store, placement, each, seed, LARGEST)).encode()
    else:
        content = _as_png(_compose(store, placement, each, seed, _fitting(each)), each)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror}); choose another place") from None


# What is on the sheet.


def _compose(store: Store, placement: Placement | None, each: int, seed: int, largest: int) -> _Sheet:
    named = any(row.hospital is not None for row in store.rows)
    hospitals: Sequence[str] = ["all hospitals together" if named else "no hospital named"]
    hospital = np.zeros(len(store.rows), dtype=np.int64)
    parts: Sequence[int] = [PARTS.index(row.part) if row.part in PARTS else -1 for row in store.rows]
    notes = list(store.notes)
    if placement is not None:
        hospitals, hospital = placement.hospitals, np.asarray(placement.hospital)
        parts = np.asarray(placement.part).tolist()
        notes += placement.notes
    facts, notes = (
        _without_names(lines, store) for lines in ([store.layout, *_facts(store, placement, each)], notes)
    )
    if store.problems:
        notes.append(f"left out as unusable: {len(store.problems):,}; `silodp data check` names what and why")
    names = _names(store)
    blocks = []
    for number, name in enumerate(hospitals[:MOST_HOSPITALS] if store.rows else ()):
        mine = np.flatnonzero(hospital == number).tolist()
        labels = {index: 0 if store.labels is None else int(store.labels[index]) for index in mine}
        patients = {index: store.rows[index].patient for index in mine}
        chosen = _choose(labels, patients, each, random_stream(seed, STREAM, number))
        chosen.sort(key=lambda index: (labels[index], parts[index], index))
        counts = [_counted(list(patients.values())), _shares(PARTS, [parts[index] for index in mine])]
        if store.labels is not None and len(names) <= MOST_COUNTED:
            counts.append(_shares(names, list(labels.values())))
        thumbnails = tuple(_thumbnail(store, index, names, parts[index], largest) for index in chosen)
        blocks.append(_Block(_clean(name), "; ".join(filter(None, counts)), thumbnails))
    return _Sheet(
        tuple(map(_sentence, facts)),
        "Outlines" if store.labels is None else "Classes",
        tuple((name, _ink(number)) for number, name in enumerate(names)),
        tuple(blocks),
        tuple(map(_sentence, notes)),
    )


def _names(store: Store) -> list[str]:
    """Of the classes or of the masks."""
    unnamed = range(len(store.classes), store.targets.shape[1] if store.labels is None else 0)
    return [*map(_clean, store.classes), *(f"mask {number + 1}" for number in unnamed)]


def _facts(store: Store, placement: Placement | None, each: int) -> list[str]:
    if not store.rows:
        return ["there are no images, so nothing is shown"]
    channels, height, width = store.images.shape[1:]
    colours = "grey" if channels == 1 else "three channels shown as red, green and blue"
    hospitals = 0 if placement is None else len(placement.hospitals)
    where = f" in {hospitals} hospital{'s' * (hospitals != 1)}" if hospitals else ""
    facts = [f"{_counted([row.patient for row in store.rows])}{where}, {height} × {width} pixels, {colours}"]
    if placement is None:
        facts.append("the images have not been divided among hospitals")
    else:
        rule = placement.rule.removeprefix("simulated: ")
        facts.append(f"the hospitals are {'' if placement.simulated else 'not '}simulated: {rule}")
    whose = "a hospital, " if hospitals else ""
    evenly = " and evenly over classes, not as often as each occurs" if store.labels is not None else ""
    facts.append(f"up to {each} image{'s' * (each != 1)} {whose}drawn at random{evenly}")
    if hospitals > MOST_HOSPITALS:
        facts.append(
            f"the first {MOST_HOSPITALS} hospitals are shown, {hospitals - MOST_HOSPITALS} are left out"
        )
    return facts


def _counted(patients: Sequence[str | None]) -> str:
    images, people = len(patients), len(set(patients))
    whose = f" of {people:,} patient{'s' * (people != 1)}" if patients and None not in patients else ""
    return f"{images:,} image{'s' * (images != 1)}{whose}"


def _shares(names: Sequence[str], numbers: Sequence[int]) -> str:
    counts = Counter(numbers)
    return ", ".join(f"{name} {counts[number]:,}" for number, name in enumerate(names) if counts[number])


def _choose(
    labels: dict[int, int], patients: dict[int, str | None], each: int, random: np.random.Generator
) -> list[int]:
    """Images at random: from each class in turn, and of another patient as long as there is one."""
    turn = {label: place for place, label in enumerate(random.permutation(sorted(set(labels.values()))))}
    seen: Counter[Any] = Counter()
    shuffled = []
    for index in random.permutation(list(labels)).tolist():
        whose = (labels[index], index if patients[index] is None else patients[index])
        shuffled.append((seen[whose], index))
        seen[whose] += 1
    drawn: Counter[int] = Counter()
    order = []
    for _, index in sorted(shuffled, key=lambda image: image[0]):
        order.append((drawn[labels[index]], turn[labels[index]], index))
        drawn[labels[index]] += 1
    return [index for _, _, index in sorted(order)[:each]]


def _without_names(lines: Sequence[str], store: Store) -> list[str]:
    """Lines without the names of files and patients, nor the brackets that list some.

    An id that is a short number or a mere word stays, for it cannot be told from a count or from prose.
    """
    words = {row.name for row in store.rows} | {row.patient or "" for row in store.rows} | {*store.files}
    words |= {word.split("#")[0] for word in words}
    text = "\n".join(lines)
    telling = [word for word in words if word in text and re.search(r"\d{5}|\D\d|\d\D|[./]", word)]
    hidden = []
    for line in lines:
        for word in sorted(telling, key=len, reverse=True):
            line = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "\0", line)
        hidden.append(re.sub(r" *\([^()]*\0[^()]*\)", "", line).replace("\0", "…"))
    return hidden


def _sentence(line: str) -> str:
    line = _clean(line).strip()
    return line[:1].upper() + line[1:] + ("" if line.endswith(".") else ".")


def _clean(text: str) -> str:
    """Without characters that cannot be seen, such as those that turn the direction of writing."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


# A thumbnail.


def _thumbnail(store: Store, index: int, names: Sequence[str], part: int, largest: int) -> _Thumbnail:
    masks = None if store.labels is not None else np.asarray(store.targets[index]) > 0
    pixels = _draw(np.asarray(store.images[index]), masks, largest)
    where = PARTS[part] if part >= 0 else ""
    if masks is not None:
        return _Thumbnail(pixels, "" if masks.any() else "nothing marked", where, None)
    label = int(store.targets[index])
    caption = "no class" if label < 0 else names[label] if label < len(names) else f"class {label}"
    return _Thumbnail(pixels, caption, where, _ink(label) if label >= 0 else _Ink("#999999", "#999999"))


def _ink(number: int) -> _Ink:
    colour = COLOURS[number % len(COLOURS)]
    return _Ink(colour, STRIPES[number // len(COLOURS) % len(STRIPES)] or colour)


def _draw(image: NDArray[Any], masks: NDArray[np.bool_] | None, largest: int) -> NDArray[np.uint8]:
    """(height, width, 3) of a visible size, with the masks' outlines."""
    from PIL import Image

    if image.dtype != np.uint8:
        image = ((image.astype(np.float32) + 1) * 127.5).round().clip(0, 255).astype(np.uint8)
    pixels = np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0))
    longer = max(pixels.shape[:2])
    if longer > largest:
        height, width = (max(1, round(side * largest / longer)) for side in pixels.shape[:2])
        pixels = np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX))
        if masks is not None:  # whatever is covered in part counts, so that no small lesion is lost
            floats = [Image.fromarray(mask.astype(np.float32)) for mask in masks]
            smaller = [mask.resize((width, height), Image.Resampling.BOX) for mask in floats]
            masks = np.stack([np.asarray(mask) > 0 for mask in smaller])
    else:
        factor = -(-SMALLEST // longer)
        pixels = pixels.repeat(factor, 0).repeat(factor, 1)
        masks = None if masks is None else masks.repeat(factor, 1).repeat(factor, 2)
    if masks is not None:
        _outline(pixels, masks)
    return pixels


def _outline(pixels: NDArray[np.uint8], masks: NDArray[np.bool_]) -> None:
    """Draws the edge of each mask, from inside; where several coincide, dashes of each in turn."""
    from PIL import ImageColor
    from scipy.ndimage import binary_erosion

    edges = masks & ~binary_erosion(masks, np.ones((1, 3, 3)), iterations=THICK)
    along = np.indices(edges.shape[1:]).sum(0)
    turn = along // DASH % np.maximum(edges.sum(0), 1)
    for number, (edge, place) in enumerate(zip(edges, edges.cumsum(0) - 1, strict=True)):
        here = edge & (place == turn)
        colours = np.array([ImageColor.getrgb(colour) for colour in _ink(number)], dtype=np.uint8)
        pixels[here] = colours[along[here] // (DASH // 2) % 2]


def _png(pixels: NDArray[np.uint8] | Image.Image) -> bytes:
    from PIL import Image

    file = BytesIO()
    (Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels).save(file, "PNG")
    return file.getvalue()


# As a page.

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --text: #1a1a1a; --faint: #595959; --line: #ccc; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --text: #ececec; --faint: #b0b0b0; --line: #444; }
}
@media print { :root { --paper: #fff; --text: #000; --faint: #444; --line: #999; } }
body { margin: 0 auto; max-width: 100rem; padding: 1rem; background: var(--paper); color: var(--text);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 0; break-after: avoid; }
p { margin: .15rem 0; max-width: 70rem; }
section, footer { border-top: 1px solid var(--line); margin-top: 1rem; padding-top: .8rem; }
.faint { color: var(--faint); font-size: .875rem; break-after: avoid; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; margin: .8rem 0 0;
  padding: 0; font-weight: 600; }
.legend span { display: inline-block; width: 1.6rem; height: .8rem; margin-right: .4rem; }
.sheet { display: grid; gap: .8rem; margin-top: .6rem;
  grid-template-columns: repeat(auto-fill, min(var(--side), calc(50vw - 1.5rem))); }
figure { margin: 0; break-inside: avoid; }
img { display: block; width: 100%; height: auto; }
.bar { height: .45rem; }
.bar, .legend span { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
figcaption div { line-height: 1.3; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{facts}
<ul class="legend"><li>{key}:</li>{legend}</ul>
</header>
<main>
{sections}
</main>
<footer>
{notes}
<p class="faint">{warning}</p>
</footer>
</body>
</html>
"""


def _as_html(sheet: _Sheet) -> str:
    swatch = '<li><span style="background:{}"></span>{}</li>'
    return _PAGE.format(
        title=TITLE,
        style=_STYLE,
        facts="\n".join(f"<p>{escape(fact)}</p>" for fact in sheet.facts),
        key=sheet.key,
        legend="".join(swatch.format(_css(ink), escape(name)) for name, ink in sheet.legend),
        sections="\n".join(map(_section, sheet.blocks)),
        notes="\n".join(f"<p>{escape(note)}</p>" for note in sheet.notes),
        warning=escape(WARNING),
    )


def _section(block: _Block) -> str:
    side = max((thumbnail.pixels.shape[1] for thumbnail in block.thumbnails), default=SMALLEST)
    figures = "\n".join(_figure(thumbnail, block.name) for thumbnail in block.thumbnails)
    return (
        f'<section>\n<h2>{escape(block.name)}</h2>\n<p class="faint">{escape(block.counts)}</p>\n'
        f'<div class="sheet" style="--side:{side}px">\n{figures}\n</div>\n</section>'
    )


def _figure(thumbnail: _Thumbnail, hospital: str) -> str:
    height, width = thumbnail.pixels.shape[:2]
    source = b64encode(_png(thumbnail.pixels)).decode()
    alt = ", ".join(filter(None, [hospital, thumbnail.caption or "masks outlined", thumbnail.part]))
    bar = f'<div class="bar" style="background:{_css(thumbnail.ink)}"></div>' if thumbnail.ink else ""
    return (
        f'<figure><img src="data:image/png;base64,{source}" width="{width}" height="{height}" '
        f'alt="{escape(alt)}">{bar}<figcaption><div>{escape(thumbnail.caption)}</div>'
        f'<div class="faint">{escape(thumbnail.part)}</div></figcaption></figure>'
    )


def _css(ink: _Ink) -> str:
    if ink.colour == ink.stripe:
        return ink.colour
    return f"repeating-linear-gradient(90deg,{ink.colour} 0 8px,{ink.stripe} 8px 12px)"


# As a picture: strips of one width, one below the other.

WIDEST, NARROWEST, MARGIN, GAP = 1600, 960, 24, 12
BAR, SWATCH = 7, 26
TEXT, FAINT, PAPER = "#1a1a1a", "#595959", "#ffffff"


def _fitting(each: int) -> int:
    """The size of thumbnails of which `each` fit side by side, unless they would be too small."""
    return min(LARGEST, max(128, (WIDEST - 2 * MARGIN + GAP) // each - GAP))


def _as_png(sheet: _Sheet, each: int) -> bytes:
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
    return _png(page)


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


def _legend(sheet: _Sheet, width: int) -> Image.Image:
    font = _font(15, bold=True)
    left, row, high = MARGIN, 0, 24
    places: list[tuple[int, int, str, _Ink | None]] = []
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


def _bar(draw: ImageDraw.ImageDraw, ink: _Ink, left: int, top: int, width: int, height: int) -> None:
    draw.rectangle([left, top, left + width - 1, top + height - 1], fill=ink.colour)
    for stripe in range(8, width, 12):
        right = min(stripe + 4, width)
        draw.rectangle([left + stripe, top, left + right - 1, top + height - 1], fill=ink.stripe)


def _row(thumbnails: Sequence[_Thumbnail], width: int, cell: int) -> Image.Image:
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
