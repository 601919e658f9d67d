"""What figures 2(a), (b) and (d) share: DP-FedAvg's runs of table 1, their rounds, how those are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from silodp.errors import InputError
from silodp.studies.output import WITH, WITHOUT
from silodp.studies.paper import printed
from silodp.studies.study import Cell, Found, Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = dict[tuple[float, str], list[float]]
"""What was measured in every round, by z and "without" or "with" intermediaries."""

UNNOISED = "ξ, φ, λ and cosines are un-noised, written down for study: no ε covers them."


def fedavg_cells(plan: Plan, splits: Sequence[bool] = (False, True)) -> list[Cell]:
    """DP-FedAvg at each z: table 1's own runs."""
    return [plan.cell(z, split, seed) for seed in plan.seeds for z in plan.noise for split in splits]


def need_diagnostics(plan: Plan, name: str) -> None:
    """Refused before anything runs: ξ, φ, λ and the cosines are what is drawn."""
    if not plan.base.diagnostics:
        raise InputError(f"diagnostics = false: {name} draws what is then not recorded; set diagnostics=true")


def hospitals_a_round(one: Found) -> float:
    """The paper's N."""
    return one.cell.experiment.participation.expected_hospitals(one.summary["members"])


def round_rows(found: Sequence[Found], *measured: Literal["lambda", "cosine_std"]) -> list[dict[str, Any]]:
    """rounds.csv: a line a round of a run, with some of what was measured in it."""
    return [
        {
            **{name: one.cell.columns[name] for name in ("z", "intermediaries", "seed")},
            "round": line["round"],
            "applied": line["applied"],
            "v": line["intermediaries"],
            "v_capped": line["intermediaries_capped"],
            **{name: line[name] for name in measured},
        }
        for one in found
        for line in one.rounds
    ]


def grouped(rows: Sequence[Mapping[str, Any]], name: str) -> Groups:
    """The rounds that moved the model: one that only measures is left out, and one without a number."""
    groups: Groups = {}
    for row in rows:
        if row["applied"] and row[name] is not None:
            groups.setdefault((row["z"], row["intermediaries"]), []).append(float(row[name]))
    return groups


def medians(groups: Groups, word: str) -> dict[float, float]:
    """By z, from the smallest."""
    return {z: median(values) for (z, which), values in sorted(groups.items()) if which == word}


def middle_half(values: Sequence[float] | None, digits: int = 2) -> str:
    """The median, and between which values half of the rounds lie."""
    if not values:
        return "–"
    low, middle, high = (f"{value:.{digits}f}" for value in np.percentile(values, (25, 50, 75)))
    return f"{middle} ({low}–{high})"


def grows(values: Sequence[float]) -> bool:
    """Whether each is larger than the one before."""
    return all(after > before for before, after in pairwise(values))


def listed(values: Mapping[float, float], digits: int = 2) -> str:
    """«1.20 at z = 0.3, 1.31 at z = 0.5»."""
    return ", ".join(f"{value:.{digits}f} at z = {z:g}" for z, value in values.items())


def in_words(part: str) -> str:
    """The paper's picture has no numbers; this is what it shows."""
    return f"What the paper shows, in a picture without numbers: {printed()['figure2'][part]}."


def draw_distributions(plan: Plan, groups: Groups, label: str) -> tuple[Figure, Axes]:
    """At each z a box and every round as a point, without and with intermediaries side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for word, colour, side, marker in (("without", WITHOUT, -0.14, "o"), ("with", WITH, 0.14, "^")):
        name = f"{word} intermediaries"
        for number, z in enumerate(plan.noise):
            values = groups.get((z, word), [])
            if not values:
                continue
            # Spread over the width in the order of the rounds: the same picture each time.
            spots = number + side + np.linspace(-0.08, 0.08, len(values)) * (len(values) > 1)
            axes.plot(spots, values, marker, color=colour, markersize=4, alpha=0.5, linewidth=0, label=name)
            name = ""  # once in the legend
            edges = {"color": colour, "linewidth": 1.5}
            axes.boxplot(
                values, positions=[number + side], widths=0.24, showfliers=False, manage_ticks=False,
                boxprops=edges, whiskerprops=edges, capprops=edges, medianprops=edges | {"linewidth": 3},
            )  # fmt: skip
            outside, align = (number + 2 * side, "left" if side > 0 else "right")
            axes.text(
                outside, median(values), f"{median(values):.3g}",
                color=colour, fontsize="small", va="center", ha=align,
            )  # fmt: skip
    axes.set_xticks(range(len(plan.noise)), [f"z = {z:g}" for z in plan.noise])
    axes.set(xlim=(-0.6, len(plan.noise) - 0.4), xlabel="noise multiplier", ylabel=label)
    axes.grid(axis="y", alpha=0.3)
    return figure, axes


def finish(figure: Figure, axes: Axes, title: str) -> None:
    """Title and legend, the latter below so that it hides nothing."""
    axes.set_title(title, loc="left", fontsize="medium")
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=3, frameon=False)


def most_over_least(values: Mapping[float, float]) -> float:
    """How many times the smallest the largest is."""
    known = [value for value in values.values() if value > 0]
    return max(known) / min(known) if known else math.nan
