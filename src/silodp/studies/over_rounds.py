"""What figures 2(a), (b) and (d) share: DP-FedAvg's runs of table 1, what was measured in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

import numpy as np

from silodp.errors import InputError
from silodp.studies.claims import Claim
from silodp.studies.paper import printed
from silodp.studies.pictures import WITH, WITHOUT, Box, Level, Panel, Picture
from silodp.studies.study import Cell, Found, Plan

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


def uncapped(rows: Sequence[Mapping[str, Any]]) -> Claim:
    """Whether the rule had its way: a v that is capped is as steady as the cap, and λ stays above 1/N."""
    with_ = [row for row in rows if row["intermediaries"] == "with" and row["applied"]]
    capped = sum(row["v_capped"] for row in with_)
    return Claim(
        "Every hospital has images for as many intermediaries as the rule asks for",
        not capped if with_ else None,
        f"v is capped in {capped} of {len(with_)} rounds",
    )


def in_words(part: str) -> str:
    """The paper's picture has no numbers; this is what it shows."""
    return f"What the paper shows, in a picture without numbers: {printed()['figure2'][part]}."


def distributions(
    plan: Plan, groups: Groups, label: str, title: str, *, target: Level | None = None
) -> Picture:
    """At each z a box and every round as a point, without and with intermediaries side by side.

    Args:
        target: the value that is aimed at; the scale is then logarithmic.
    """
    boxes = [
        Box(number + side, groups[z, word], marker, colour, f"{word} intermediaries", side)
        for word, colour, side, marker in (("without", WITHOUT, -0.14, "o"), ("with", WITH, 0.14, "^"))
        for number, z in enumerate(plan.noise)
        if (z, word) in groups
    ]
    panel = Panel(
        "noise multiplier",
        label,
        boxes=boxes,
        levels=[target] if target else [],
        ticks={number: f"z = {z:g}" for number, z in enumerate(plan.noise)},
        y_range=None if target else (0, None),
        log="y" if target else "",
    )
    return Picture([panel], (7.5, 4.6), f"{title}; a point a round, median beside the box")
