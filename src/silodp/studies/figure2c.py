"""Figure 2(c): fewer hospitals, the same test images, without and with intermediaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from silodp.errors import InputError
from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import (
    METRIC_NAMES,
    PAIRED,
    Pair,
    distinct,
    mean_test,
    pairs,
    scored,
    signed,
    table,
)
from silodp.studies.output import Results
from silodp.studies.over_rounds import paper_shows
from silodp.studies.paper import printed, table1
from silodp.studies.pictures import WITH, WITHOUT, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study

MOST = 5
"""Numbers of hospitals that are tried: the paper's 2…6, evenly spread for larger cohorts."""

Means = dict[int, float]
"""The headline metric by number of hospitals, where it is defined."""


def cells(plan: Plan) -> list[Cell]:
    return [
        _cell(plan, members, split, seed)
        for seed in plan.seeds
        for members in _numbers(len(plan.training_sizes))
        for split in (False, True)
    ]


def _numbers(hospitals: int) -> list[int]:
    if hospitals < 2:
        raise InputError(f"cohort: {hospitals} hospital; figure2c leaves hospitals out, give it two or more")
    steps = min(MOST, hospitals - 1)
    return sorted(
        {round(2 + (hospitals - 2) * step / max(1, steps - 1)) for step in range(steps)} | {hospitals}
    )


def _cell(plan: Plan, members: int, split: bool, seed: int) -> Cell:
    """With all hospitals it is a run of table 1, so no setting changes."""
    if members == len(plan.training_sizes):
        return plan.cell(plan.noise[0], split, seed)
    changes = {"participation.members": members}
    return plan.cell(plan.noise[0], split, seed, variant=f"{members}hospitals", changes=changes)


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    metric, total = plan.metrics[0], found[0].summary["cohort"]["hospitals"]
    both = sorted(pairs(found, lambda one: one.summary["members"]), key=lambda pair: int(pair.key))

    def printed_for(members: int, split: bool) -> Sequence[float] | None:
        values = table1(plan.task, "fedavg", plan.noise[0], split)
        return values[:2] if values and members == printed()["table1"][plan.task]["hospitals"] else None

    columns = (
        ("hospitals N", lambda pair: str(pair.key)),
        ("δ", lambda pair: distinct([*pair.without, *pair.with_], "delta")),
        *PAIRED,
        *scored(metric, printed_for),
    )
    explanation = (
        f"z = {plan.noise[0]:g}. The first N of {total} hospitals train; the others only lend their "
        f"validation and test images, so that every number is of the same test images, those of all {total}. "
        "δ follows N by the paper's rule, 10^-k ≤ 1/N: compare the ε of rows with the same δ only."
    )
    return Results(
        "Figure 2(c), prostate: fewer hospitals",
        found,
        [explanation, table(both, columns)],
        _claims(both, metric),
        [paper_shows("c")],
        {"figure2c": _picture(plan, both)},
        {"points.csv": _points(found, metric)},
    )


def _points(found: Sequence[CellRun], metric: str) -> list[dict[str, Any]]:
    """points.csv: a row for each run."""
    return [
        {
            "hospitals": one.summary["members"],
            "intermediaries": one.cell.columns["intermediaries"],
            "seed": one.cell.columns["seed"],
            f"test_{metric}": one.test(metric),
        }
        for one in sorted(found, key=lambda one: one.summary["members"])
    ]


def _means(both: Sequence[Pair], metric: str, word: str) -> Means:
    every = {pair.key: mean_test(pair.runs(word), metric) for pair in both}
    return {members: value for members, value in every.items() if not math.isnan(value)}


def _claims(both: Sequence[Pair], metric: str) -> list[Claim]:
    """How much is lost from the most hospitals to the fewest, and whether the method loses a smaller part."""
    without, with_ = (_means(both, metric, word) for word in ("without", "with"))
    lost, lost_with = _lost(without), _lost(with_)
    falls = lost > 0 if not math.isnan(lost) else None
    smaller = lost_with < lost if falls and not math.isnan(lost_with) else None
    name = METRIC_NAMES[metric]
    gains = {f"N = {pair.key}": pair.gain(metric) for pair in both if pair.without and pair.with_}
    return [
        Claim(f"Without intermediaries the {name} falls when hospitals leave", falls, _course(without)),
        Claim("With intermediaries a smaller part of it is lost", smaller, _course(with_)),
        everywhere(f"The {name} is higher with intermediaries", gains),
    ]


def _lost(means: Means) -> float:
    """The fraction lost from the most hospitals to the fewest; NaN where it cannot be computed."""
    if len(means) < 2:
        return math.nan
    most, fewest = means[max(means)], means[min(means)]
    return (most - fewest) / most if most > 0 else 0.0


def _course(means: Means) -> str:
    if len(means) < 2:
        return ""
    most, fewest = max(means), min(means)
    return (
        f"{means[most]:.3f} with {most} hospitals, {means[fewest]:.3f} with {fewest} "
        f"({signed(means[fewest] - means[most])}, {max(_lost(means), 0):.0%} lost)"
    )


def _picture(plan: Plan, both: Sequence[Pair]) -> Picture:
    metric, lines = plan.metrics[0], []
    for word, colour, style in (("without", WITHOUT, "o--"), ("with", WITH, "^-")):
        means = _means(both, metric, word)
        lines.append(Line(means.items(), style, colour, f"{word} intermediaries"))
        points = [(pair.key, one.test(metric)) for pair in both for one in pair.runs(word)]
        if len(plan.seeds) > 1:
            lines.append(Line(points, style[0], colour, faint=True))
        if values := table1(plan.task, "fedavg", plan.noise[0], word == "with"):
            label, number = f"{word}, the paper (its table 1)", printed()["table1"][plan.task]["hospitals"]
            lines.append(Line([(number, values[0])], "s", colour, label, hollow=True))
    name = METRIC_NAMES[metric]
    panel = Panel(
        "hospitals that train, N",
        f"test {name} on all hospitals' images\n(higher is better)",
        lines,
        title=f"Test {name} when fewer hospitals train (z = {plan.noise[0]:g})",
        ticks=[pair.key for pair in both],
    )
    return Picture([panel], (7, 4.6), legends=2)


STUDY = Study(
    "figure2c", "Figure 2(c): test Dice against the number of hospitals", "prostate", cells, results, runs=10
)
