"""A line chart as a small inline SVG, sized for a phone and coloured by the style sheet of the page.

Text stays text, for screen readers, search and printing; points have their values as tooltips. A line has a
gap where a value is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from silodp.report.axis import Axis, fixed_axis, linear_axis, log_axis, number, round_axis

WIDTH, HEIGHT = 360, 220
TOP, BOTTOM = 22, 38
LETTER = 6.6  # upper bound of a letter's width, in units of the drawing
LABEL = 13  # smallest distance between two labels
MOST_MARKED = 24  # points of a line with a dot each
BEYOND = 1e100  # larger values are not drawn, nor infinity and NaN
STYLES = 7  # colours and dashes in the style sheet

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: in the legend and for screen readers.
        points: (x, y) in order of x; None where there is no value.
        kind: bold lines have a colour and a label; faint ones are behind; a reference is for comparison.
        style: colour and dashes of a bold line.
        label: at the end of the line.
        hint: tooltip; default: the name.
    """

    name: str
    points: tuple[Point, ...]
    kind: Literal["bold", "faint", "reference"] = "bold"
    style: int = 0
    label: str = ""
    hint: str = ""

    @property
    def css(self) -> str:
        """Its classes in the style sheet."""
        return f"{self.kind} s{self.style % STYLES}" if self.kind == "bold" else self.kind


@dataclass(frozen=True)
class Chart:
    """The content of a chart.

    Attributes:
        title: in plain words.
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
        """One line for each name."""
        return list({line.name: line for line in self.lines}.values())


def known(points: Iterable[tuple[float, object]]) -> tuple[Point, ...]:
    """The points with None in place of everything that is not a finite number."""
    return tuple((x, float(y) if isinstance(y, int | float) and abs(y) < BEYOND else None) for x, y in points)


def is_empty(chart: Chart) -> bool:
    """Whether there is nothing to draw."""
    return not any(_drawn(line, chart) for line in chart.lines if line.kind != "reference")


def draw(chart: Chart) -> Markup:
    """The chart as an <svg>; it must not be empty."""
    plot = _Plot.of(chart)
    parts = [*_grid(plot, chart)]
    order = {"reference": 0, "faint": 1, "bold": 2}  # bold lines on top
    for line in sorted(chart.lines, key=lambda line: order[line.kind]):
        parts += _line(plot, line, chart)
    parts += _labels(plot, chart)
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, describe(chart), Markup("").join(parts)
    )


def describe(chart: Chart) -> str:
    """Text for screen readers: first and last values of the bold lines, and the levels."""
    parts = []
    for line in chart.lines:
        points = _drawn(line, chart)
        if line.kind == "bold" and points:
            (first, start), (last, end) = points[0], points[-1]
            parts.append(
                f"{line.name}: from {number(start)} at {chart.x_label} {number(first)} "
                f"to {number(end)} at {chart.x_label} {number(last)}"
            )
    parts += [f"{label}: {number(value)}" for value, label in chart.levels]
    return f"{chart.title}. " + "; ".join(parts)


@dataclass(frozen=True)
class _Plot:
    """Maps values to places in the drawing."""

    left: float
    right: float
    across: Axis
    up: Axis

    @classmethod
    def of(cls, chart: Chart) -> _Plot:
        values = [y for line in chart.lines for _, y in _drawn(line, chart)]
        values += [value for value, _ in chart.levels if _usable(value, chart)]
        ends = [x for line in chart.lines for x, _ in line.points]
        across = fixed_axis(*chart.x_range) if chart.x_range else round_axis(min(ends), max(ends))
        if chart.scale == "log":
            up = log_axis(min(values), max(values), room_above=bool(chart.levels))
        elif chart.y_range:
            up = fixed_axis(*chart.y_range)
        else:
            up = linear_axis(min(values), max(values), whole=chart.scale == "whole")
        left = 14 + LETTER * max(len(number(tick)) for tick in up.ticks)
        longest = max((len(line.label) for line in chart.lines), default=0)
        right = WIDTH - (12 + LETTER * longest if longest else 10)
        return cls(left, right, across, up)

    def x(self, value: float) -> float:
        return round(self.left + self.across.share(value) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - self.up.share(value) * (HEIGHT - BOTTOM - TOP), 1)


def _usable(value: float, chart: Chart) -> bool:
    return abs(value) < BEYOND and (chart.scale != "log" or value > 1 / BEYOND)


def _drawn(line: Line, chart: Chart) -> list[tuple[float, float]]:
    """The points of a line that have a place on the axes."""
    return [(x, y) for x, y in line.points if y is not None and _usable(y, chart)]


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}"{}>{}</text>').format(
        round(x, 1), round(y, 1), anchor, Markup(' class="{}"').format(kind) if kind else "", text
    )


def _grid(plot: _Plot, chart: Chart) -> Iterable[Markup]:
    bottom = HEIGHT - BOTTOM
    for tick in plot.up.ticks:
        y = plot.y(tick)
        yield Markup('<path class="grid" d="M{} {}H{}"/>').format(plot.left, y, plot.right)
        yield _text(plot.left - 5, y + 4, number(tick), "end")
    for tick in plot.across.ticks:
        yield _text(plot.x(tick), bottom + 15, number(tick), "middle")
    yield Markup('<path class="axis" d="M{} {}H{}"/>').format(plot.left, bottom, plot.right)
    yield _text(2, 12, chart.y_label, kind="unit")
    yield _text((plot.left + plot.right) / 2, HEIGHT - 6, chart.x_label, "middle", "unit")


def _line(plot: _Plot, line: Line, chart: Chart) -> Iterable[Markup]:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in line.points:
        if y is not None and _usable(y, chart):
            pieces[-1].append((x, y))
        else:
            pieces.append([])
    for piece in filter(None, pieces):
        path = "L".join(f"{plot.x(x)} {plot.y(y)}" for x, y in piece)
        if len(piece) > 1:
            yield Markup('<path class="line {}" d="M{}"><title>{}</title></path>').format(
                line.css, path, line.hint or line.name
            )
        marked = line.kind == "bold" and len(line.points) <= MOST_MARKED
        for x, y in piece if marked or len(piece) == 1 else ():
            where = f"{line.hint or line.name}, {chart.x_label} {number(x)}: {number(y)}"
            yield Markup('<circle class="dot {}" cx="{}" cy="{}" r="2.6"><title>{}</title></circle>').format(
                line.css, plot.x(x), plot.y(y), where
            )


def _labels(plot: _Plot, chart: Chart) -> Iterable[Markup]:
    """Levels with their labels, and the labels at the ends of lines, which do not overlap."""
    for value, label in chart.levels:
        if _usable(value, chart):
            height = plot.y(value)
            yield Markup('<path class="level" d="M{} {}H{}"/>').format(plot.left, height, plot.right)
            above = height - 4 if height - TOP > LABEL else height + 12
            yield _text(plot.left + 3, above, label, kind="level")
    ended = [(points, line) for line in chart.lines if line.label and (points := _drawn(line, chart))]
    ends = sorted(((plot.y(points[-1][1]), line) for points, line in ended), key=lambda end: end[0])
    for y, (_, line) in zip(_apart([y for y, _ in ends]), ends, strict=True):
        yield _text(plot.right + 6, y + 4, line.label, kind=f"end s{line.style % STYLES}")


def _apart(places: Sequence[float]) -> list[float]:
    """The sorted places moved apart to a distance of LABEL or more, none below the axis."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + LABEL) if moved else place)
    lowest: float = HEIGHT - BOTTOM
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], lowest)
        lowest = moved[index] - LABEL
    return moved


def swatch(line: Line) -> Markup:
    """A short line for the legend."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true"><path class="line {}" d="M1 5H29"/></svg>'
    ).format(line.css)
