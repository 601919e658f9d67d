"""A line chart as a small inline SVG: drawn for the width of a phone, coloured by the page's style sheet.

Text stays text, so that it can be read aloud, searched and printed; a point tells its value when pointed at.
Nothing is drawn where a value is missing: a line has a gap there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

WIDTH, HEIGHT = 360, 220
TOP, BOTTOM = 22, 38
LETTER = 6.6  # width of a letter, at most, in units of the drawing
LABEL = 13  # least distance of two labels
MOST_MARKED = 24  # points of a line that get a dot each
BEYOND = 1e100  # no axis is that long; infinity and NaN are not below it either
STYLES = 7  # colours and dashes that the style sheet knows

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: what it shows, in the legend and for those who hear the page.
        points: (x, y) in order of x; None where there is no value.
        kind: bold lines have a colour and a label; faint ones are the many behind; a reference is to compare.
        style: which colour and dash a bold line has.
        label: written at its end.
        hint: told when it is pointed at; default: the name.
    """

    name: str
    points: tuple[Point, ...]
    kind: Literal["bold", "faint", "reference"] = "bold"
    style: int = 0
    label: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Chart:
    """What is drawn.

    Attributes:
        title: what it shows, in plain words.
        about: how to read it, and which direction is better.
        levels: (value, label) of horizontal lines, such as a budget.
    """

    title: str
    about: str
    y_label: str
    lines: tuple[Line, ...]
    x_label: str = "round"
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    scale: Literal["linear", "log", "whole"] = "linear"
    levels: tuple[tuple[float, str], ...] = ()

    @property
    def legend(self) -> list[Line]:
        """One entry a name."""
        return list({line.name: line for line in self.lines}.values())


def known(points: Iterable[tuple[float, object]]) -> tuple[Point, ...]:
    """Points with None in place of what is no number that can be drawn."""
    return tuple((x, float(y) if isinstance(y, int | float) and abs(y) < BEYOND else None) for x, y in points)


def is_empty(chart: Chart) -> bool:
    """Whether nothing of it could be drawn."""
    lines = [line for line in chart.lines if line.kind != "reference"]
    return not any(_usable(y, chart) for line in lines for _, y in line.points)


def draw(chart: Chart) -> Markup:
    """The chart as an <svg>; it must not be empty."""
    plot = _Plot.of(chart)
    parts = [*_grid(plot, chart)]
    order = {"reference": 0, "faint": 1, "bold": 2}  # the boldest lies on top
    for line in sorted(chart.lines, key=lambda line: order[line.kind]):
        parts += _line(plot, line, chart)
    parts += _labels(plot, chart)
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, spoken(chart), Markup("").join(parts)
    )


def spoken(chart: Chart) -> str:
    """What the chart shows, for those who cannot see it: the ends of its bold lines."""
    told = []
    for line in chart.lines:
        values = [(x, y) for x, y in line.points if y is not None and _usable(y, chart)]
        if line.kind == "bold" and values:
            (first, start), (last, end) = values[0], values[-1]
            told.append(
                f"{line.name}: from {number(start)} at {chart.x_label} {number(first)} "
                f"to {number(end)} at {chart.x_label} {number(last)}"
            )
    told += [f"{label}: {number(value)}" for value, label in chart.levels]
    return f"{chart.title}. " + "; ".join(told)


def number(value: float) -> str:
    """A number as people read it."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.2g}"


@dataclass(frozen=True)
class _Plot:
    """Where a value lies on the drawing."""

    left: float
    right: float
    x_ticks: list[float]
    y_ticks: list[float]
    x_range: tuple[float, float]
    y_range: tuple[float, float]  # of logarithms on a logarithmic scale
    log: bool

    @classmethod
    def of(cls, chart: Chart) -> _Plot:
        values = [y for line in chart.lines for _, y in line.points if y is not None and _usable(y, chart)]
        values += [value for value, _ in chart.levels if _usable(value, chart)]
        ends = [x for line in chart.lines for x, _ in line.points]
        x_range = chart.x_range or _widened(min(ends), max(ends), 0.5)
        x_ticks = _ticks(min(ends), max(ends), 5, chart.x_range is None)
        if chart.x_range is None and min(ends) not in x_ticks:  # rounds begin with the first, not with 0
            near = (max(ends) - min(ends)) / 12
            x_ticks = [min(ends), *(tick for tick in x_ticks if tick - min(ends) > near)]
        if chart.scale == "log":
            low, high = _widened(math.log10(min(values)), math.log10(max(values)), 0.3)
            low, high = low - (high - low) * 0.08, high + (high - low) * 0.08
            high += (high - low) * 0.06 * bool(chart.levels)  # room for the label of a level at the top
            y_ticks = _log_ticks(low, high)
        else:
            low, high = chart.y_range or _widened(min(0.0, *values), max(values), 1.0)
            if chart.y_range is None:
                low, high = _round_ends(low, high, chart.scale == "whole")
            y_ticks = _ticks(low, high, 5, chart.scale == "whole")
        left = 14 + LETTER * max((len(number(tick)) for tick in y_ticks), default=1)
        longest = max((len(line.label) for line in chart.lines), default=0)
        right = WIDTH - (12 + LETTER * longest if longest else 10)
        return cls(left, right, x_ticks, y_ticks, x_range, (low, high), chart.scale == "log")

    def x(self, value: float) -> float:
        low, high = self.x_range
        return round(self.left + (value - low) / (high - low) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        low, high = self.y_range
        place = math.log10(value) if self.log else value
        share = min(1.0, max(0.0, (place - low) / (high - low)))
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def _usable(value: float | None, chart: Chart) -> bool:
    return value is not None and abs(value) < BEYOND and (chart.scale != "log" or value > 1 / BEYOND)


def _widened(low: float, high: float, least: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - least / 2, high + least / 2)


def _locate(low: float, high: float, most: int, whole: bool) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10], integer=whole, min_n_ticks=2)
    return [float(tick) for tick in locator.tick_values(low, high)]


def _round_ends(low: float, high: float, whole: bool) -> tuple[float, float]:
    """The ticks around a range, so that the largest value lies below the last one."""
    ticks = _locate(low, high, 5, whole)
    return ticks[0], ticks[-1]


def _ticks(low: float, high: float, most: int, whole: bool) -> list[float]:
    found = _locate(low, high, most, whole)
    near = (high - low) * 1e-9
    return [tick + 0.0 for tick in found if low - near <= tick <= high + near]


def _log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two powers of ten, no more than six of them."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in decades for step in steps]
        ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
        if len(ticks) <= 6:
            break
    return ticks[:: 1 + (len(ticks) - 1) // 6] or [10 ** ((low + high) / 2)]


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}"{}>{}</text>').format(
        round(x, 1), round(y, 1), anchor, Markup(' class="{}"').format(kind) if kind else "", text
    )


def _grid(plot: _Plot, chart: Chart) -> Iterable[Markup]:
    bottom = HEIGHT - BOTTOM
    for tick in plot.y_ticks:
        y = plot.y(tick)
        yield Markup('<path class="grid" d="M{} {}H{}"/>').format(plot.left, y, plot.right)
        yield _text(plot.left - 5, y + 4, number(tick), "end")
    for tick in plot.x_ticks:
        yield _text(plot.x(tick), bottom + 15, number(tick), "middle")
    yield Markup('<path class="axis" d="M{} {}H{}"/>').format(plot.left, bottom, plot.right)
    yield _text(2, 12, chart.y_label, kind="unit")
    yield _text((plot.left + plot.right) / 2, HEIGHT - 6, chart.x_label, "middle", "unit")


def _line(plot: _Plot, line: Line, chart: Chart) -> Iterable[Markup]:
    name = f"line {line.kind} s{line.style % STYLES}" if line.kind == "bold" else f"line {line.kind}"
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in line.points:
        if y is None or not _usable(y, chart):
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    for piece in filter(None, pieces):
        path = "L".join(f"{plot.x(x)} {plot.y(y)}" for x, y in piece)
        if len(piece) > 1:
            yield Markup('<path class="{}" d="M{}"><title>{}</title></path>').format(
                name, path, line.hint or line.name
            )
        marked = line.kind == "bold" and len(line.points) <= MOST_MARKED
        for x, y in piece if marked or len(piece) == 1 else ():
            where = f"{line.hint or line.name}, {chart.x_label} {number(x)}: {number(y)}"
            yield Markup('<circle class="{}" cx="{}" cy="{}" r="2.6"><title>{}</title></circle>').format(
                name.replace("line", "dot"), plot.x(x), plot.y(y), where
            )


def _labels(plot: _Plot, chart: Chart) -> Iterable[Markup]:
    """Levels with their labels on top of all; each label beside the end of its line, none over another."""
    for value, label in chart.levels:
        if _usable(value, chart):
            height = plot.y(value)
            yield Markup('<path class="level" d="M{} {}H{}"/>').format(plot.left, height, plot.right)
            above = height - 4 if height - TOP > LABEL else height + 12
            yield _text(plot.left + 3, above, label, kind="level")
    ends: list[tuple[float, Line]] = []
    for line in chart.lines:
        values = [y for _, y in line.points if y is not None and _usable(y, chart)]
        if line.label and values:
            ends.append((plot.y(values[-1]), line))
    ends.sort(key=lambda end: end[0])
    for y, (_, line) in zip(_apart([y for y, _ in ends]), ends, strict=True):
        yield _text(plot.right + 6, y + 4, line.label, kind=f"end s{line.style % STYLES}")


def _apart(places: Sequence[float]) -> list[float]:
    """Sorted places, at least LABEL from each other and none below the axis."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + LABEL) if moved else place)
    lowest: float = HEIGHT - BOTTOM
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], lowest)
        lowest = moved[index] - LABEL
    return moved


def swatch(line: Line) -> Markup:
    """A piece of a line for the legend."""
    name = f"line {line.kind} s{line.style % STYLES}" if line.kind == "bold" else f"line {line.kind}"
    return Markup(
        '<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true"><path class="{}" d="M1 5H29"/></svg>'
    ).format(escape(name))
