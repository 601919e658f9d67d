"""A contact sheet as one HTML file that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from html import escape

from silodp.cohorts.contact_sheet.sheet import TITLE, WARNING, Block, Sheet
from silodp.cohorts.contact_sheet.thumbnail import SMALLEST, Ink, Thumbnail, png_bytes

STYLE = """
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

PAGE = """<!DOCTYPE html>
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


def as_html(sheet: Sheet) -> str:
    swatch = '<li><span style="background:{}"></span>{}</li>'
    return PAGE.format(
        title=TITLE,
        style=STYLE,
        facts="\n".join(f"<p>{escape(fact)}</p>" for fact in sheet.facts),
        key=sheet.key,
        legend="".join(swatch.format(_css(ink), escape(name)) for name, ink in sheet.legend),
        sections="\n".join(map(_section, sheet.blocks)),
        notes="\n".join(f"<p>{escape(note)}</p>" for note in sheet.notes),
        warning=escape(WARNING),
    )


def _section(block: Block) -> str:
    side = max((thumbnail.pixels.shape[1] for thumbnail in block.thumbnails), default=SMALLEST)
    figures = "\n".join(_figure(thumbnail, block.name) for thumbnail in block.thumbnails)
    return (
        f'<section>\n<h2>{escape(block.name)}</h2>\n<p class="faint">{escape(block.counts)}</p>\n'
        f'<div class="sheet" style="--side:{side}px">\n{figures}\n</div>\n</section>'
    )


def _figure(thumbnail: Thumbnail, hospital: str) -> str:
    height, width = thumbnail.pixels.shape[:2]
    source = b64encode(png_bytes(thumbnail.pixels)).decode()
    alt = ", ".join(filter(None, [hospital, thumbnail.caption or "masks outlined", thumbnail.part]))
    bar = f'<div class="bar" style="background:{_css(thumbnail.ink)}"></div>' if thumbnail.ink else ""
    return (
        f'<figure><img src="data:image/png;base64,{source}" width="{width}" height="{height}" '
        f'alt="{escape(alt)}">{bar}<figcaption><div>{escape(thumbnail.caption)}</div>'
        f'<div class="faint">{escape(thumbnail.part)}</div></figcaption></figure>'
    )


def _css(ink: Ink) -> str:
    if ink.colour == ink.stripe:
        return ink.colour
    return f"repeating-linear-gradient(90deg,{ink.colour} 0 8px,{ink.stripe} 8px 12px)"
