"""Figures of studies as data, and how Matplotlib draws them."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from silodp.files import write_atomically
from silodp.studies.columns import defined_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"
"""Colours that colour-blind readers can tell apart."""

WITHOUT, WITH = ORANGE, BLUE
"""Colours of runs without and with intermediaries."""

DPI = 150  # of the png


@dataclass(frozen=True)
class Line:
    """Points, a line through them, or both; where several have the same x, their mean and a dot for each.

    Attributes:
        style: marker and dashes, such as "o--".
        label: in the legend; empty: not in the legend.
        hollow: unfilled markers, for the paper's figures.
    """

    points: Collection[tuple[float, float]]
    style: str
    colour: str
    label: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class Level:
    """A horizontal line."""

    y: float
    label: str
    dashes: str = "--"
    colour: str = GREY


@dataclass(frozen=True)
class Box:
    """A box plot with every value as a point.

    Attributes:
        aside: offset at which the median is printed; negative: to the left.
    """

    x: float
    values: Sequence[float]
    marker: str
    colour: str
    label: str
    aside: float


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        ticks: on the x axis, with labels if it is a mapping.
        y_range: None: from the data.
        log: which axes are logarithmic.
    """

    x_label: str
    y_label: str
    lines: Sequence[Line] = ()
    levels: Sequence[Level] = ()
    boxes: Sequence[Box] = ()
    title: str = ""
    ticks: Sequence[float] | Mapping[float, str] = ()
    y_range: tuple[float | None, float | None] | None = (0, 1)
    log: Literal["", "x", "y", "xy"] = ""


@dataclass(frozen=True)
class Picture:
    """Panels side by side, with one y axis unless they have different labels on it.

    Attributes:
        size: width and height in inches.
        legends: columns of the one legend below all panels; 0: a legend below each panel.
        note: text below everything.
    """

    panels: Sequence[Panel]
    size: tuple[float, float]
    title: str = ""
    legends: int = 3
    note: str = ""


def write_picture(out: Path, name: str, picture: Picture) -> None:
    """Writes svg and png files, which are the same bytes for the same content."""
    import matplotlib

    figure = draw(picture)
    for kind in ("svg", "png"):
        content = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "silodp"}):
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
        write_atomically(out / f"{name}.{kind}", content.getvalue())


def draw(picture: Picture) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=picture.size, layout="constrained")
    if picture.title:
        figure.suptitle(picture.title, fontsize="medium")
    if picture.note:
        figure.supxlabel(picture.note, fontsize="small")
    labels = {panel.y_label for panel in picture.panels} - {""}
    places = figure.subplots(1, len(picture.panels), sharey=len(labels) == 1, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, panel in zip(places, picture.panels, strict=True):
        _fill(axes, panel)
        found = zip(*axes.get_legend_handles_labels(), strict=True)
        handles |= {label: handle for handle, label in found if label not in handles}
        if not picture.legends:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    if picture.legends and handles:
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=picture.legends,
            frameon=False, fontsize="small",
        )  # fmt: skip
    return figure


def _fill(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    for line in panel.lines:
        values: dict[float, list[float]] = {}
        for x, y in line.points:
            values.setdefault(x, []).append(y)
        axes.plot(
            list(values), [defined_mean(own) for own in values.values()], line.style, color=line.colour,
            label=line.label, linewidth=1.3, markerfacecolor="none" if line.hollow else line.colour,
        )  # fmt: skip
        if len(values) < len(line.points):
            axes.plot(*zip(*line.points, strict=True), "o", color=line.colour, alpha=0.4, markersize=3)
    for level in panel.levels:
        axes.axhline(level.y, color=level.colour, linewidth=1, linestyle=level.dashes, label=level.label)
    for box in panel.boxes:
        _box(axes, box)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.tick_params(labelleft=bool(panel.y_label))
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    if panel.title:
        axes.set_title(panel.title, fontsize="medium")
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name in panel.log:
            _logarithmic(axes, name, axis)
    if isinstance(panel.ticks, Mapping):
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
    elif panel.ticks:
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
    elif "x" not in panel.log:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.boxes:
        axes.set_xlim(-0.6, len(panel.ticks) - 0.4)
    axes.grid(alpha=0.3)


def _logarithmic(axes: Axes, name: str, axis: Any) -> None:
    """Makes an axis logarithmic, labelled with plain numbers instead of powers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set(**{f"{name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _box(axes: Axes, box: Box) -> None:
    # Points are spread over the width in order, not at random: the figure is reproducible.
    count, edges = len(box.values), {"color": box.colour, "linewidth": 1.5}
    spots = [box.x + 0.16 * (number / (count - 1) - 0.5) if count > 1 else box.x for number in range(count)]
    axes.plot(spots, box.values, box.marker, color=box.colour, markersize=4, alpha=0.5, label=box.label)
    axes.boxplot(
        box.values, positions=[box.x], widths=0.24, showfliers=False, manage_ticks=False,
        boxprops=edges, whiskerprops=edges, capprops=edges, medianprops=edges | {"linewidth": 3},
    )  # fmt: skip
    middle, align = median(box.values), "left" if box.aside > 0 else "right"
    axes.text(
        box.x + box.aside, middle, f"{middle:.3g}", color=box.colour, fontsize="small", va="center", ha=align
    )
