"""What figures 2(a), (b) and (d) share: the DP-FedAvg runs of table 1 and their measurements a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

import numpy as np

from silodp.errors import InputError
from silodp.intermediary import closed_form
from silodp.studies.claims import Claim
from silodp.studies.columns import PAIRED, Columns, Pair, pairs, table
from silodp.studies.paper import printed
from silodp.studies.pictures import WITH, WITHOUT, Box, Level, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan

Groups = dict[tuple[float, str], list[float]]
"""Measurements of rounds, by z and "without" or "with" intermediaries."""

UNNOISED = "ξ, φ, λ and cosines are un-noised, recorded for study: no ε covers them."


def fedavg_cells(plan: Plan, splits: Sequence[bool] = (False, True), *, shows: str = "") -> list[Cell]:
    """DP-FedAvg at each z, the same runs as in table 1.

    Args:
        splits: whether hospitals are split.
        shows: name of a study that shows ξ, φ, λ or cosines; then a plan without diagnostics is refused.
    """
    if shows:
        require_diagnostics(plan, shows)
    return [plan.cell(z, split, seed) for seed in plan.seeds for z in plan.noise for split in splits]


def require_diagnostics(plan: Plan, name: str) -> None:
    """Refuses, before anything runs, a plan whose runs would not record ξ, φ, λ and cosines."""
    if not plan.base.diagnostics:
        raise InputError(
            f"diagnostics = false: {name} shows values that are then missing; set diagnostics=true"
        )


def hospitals_a_round(one: CellRun) -> float:
    """The paper's N: hospitals in a round."""
    return one.cell.experiment.participation.expected_hospitals(one.summary["members"])


def expected_v(one: CellRun) -> float:
    """v* = √(z√d/N), at which the adaptive rule settles if C is the median norm."""
    z = one.cell.experiment.privacy.noise_multiplier
    return closed_form(z, one.summary["parameters"], hospitals_a_round(one))


def round_rows(found: Sequence[CellRun], *measured: Literal["lambda", "cosine_std"]) -> list[dict[str, Any]]:
    """rounds.csv: a row for each round of each run, with some of its measurements."""
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
    """A measurement of the rounds that were applied and have a value; measuring rounds are left out."""
    groups: Groups = {}
    for row in rows:
        if row["applied"] and row[name] is not None:
            groups.setdefault((row["z"], row["intermediaries"]), []).append(float(row[name]))
    return groups


def medians(groups: Groups, word: str) -> dict[float, float]:
    """Medians "without" or "with" intermediaries by z, in ascending order."""
    return {z: median(values) for (z, which), values in sorted(groups.items()) if which == word}


def middle_half(values: Sequence[float] | None, digits: int = 2) -> str:
    """The median and the interquartile range, as text."""
    if not values:
        return "–"
    low, middle, high = (f"{value:.{digits}f}" for value in np.percentile(values, (25, 50, 75)))
    return f"{middle} ({low}–{high})"


def uncapped(rows: Sequence[Mapping[str, Any]]) -> Claim:
    """Claims that v was never capped: a capped v is as steady as the cap and leaves λ above 1/N."""
    with_ = [row for row in rows if row["intermediaries"] == "with" and row["applied"]]
    capped = sum(row["v_capped"] for row in with_)
    return Claim(
        "Every hospital has images for as many intermediaries as the rule asks for",
        not capped if with_ else None,
        f"v is capped in {capped} of {len(with_)} rounds",
    )


def paper_shows(part: str) -> str:
    """A sentence on the paper's figure, which has no numbers."""
    return f"What the paper shows, in a figure without numbers: {printed()['figure2'][part]}."


def distribution_table(
    found: Sequence[CellRun],
    groups: Groups,
    heading: str,
    digits: int = 2,
    *,
    before: Columns[Pair] = (),
    after: Columns[Pair] = (),
) -> str:
    """Median and interquartile range of a measurement at each z, without and with intermediaries."""
    columns: Columns[Pair] = (
        ("z", lambda pair: f"{pair.key:g}"),
        *PAIRED,
        *before,
        (f"{heading} without: median (middle half)",
         lambda pair: middle_half(groups.get((pair.key, "without")), digits)),
        ("with", lambda pair: middle_half(groups.get((pair.key, "with")), digits)),
        *after,
    )  # fmt: skip
    return table(pairs(found, lambda one: one.cell.columns["z"]), columns)


def distributions(
    plan: Plan, groups: Groups, label: str, title: str, *, target: Level | None = None
) -> Picture:
    """Box plots over rounds at each z, without and with intermediaries side by side.

    Args:
        target: a level to draw; the scale is then logarithmic.
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
