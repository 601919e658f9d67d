"""Figure 2(c): fewer hospitals, the same test images, without and with intermediaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from silodp.errors import InputError
from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import (
    METRIC_NAMES,
    PAIRED,
    Pair,
    distinct,
    gains,
    mean_test,
    pairs,
    points,
    scored,
    signed,
    table,
)
from silodp.studies.output import Results
from silodp.studies.over_rounds import paper_shows
from silodp.studies.paper import hospitals, table1
from silodp.studies.pictures import WITH, WITHOUT, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study

MOST = 5
"""Numbers of hospitals that are tried: the paper's 2…6, evenly spread for larger cohorts."""


def cells(plan: Plan) -> list[Cell]:
    return [
        _cell(plan, members, split, seed)
        for seed in plan.seeds
        for members in _numbers(len(plan.training_sizes))
        for split in (False, True)
    ]


def _numbers(most: int) -> list[int]:
    if most < 2:
        raise InputError(f"cohort: {most} hospital; figure2c leaves hospitals out, give it two or more")
    numbers: list[int] = np.linspace(2, most, min(MOST, most - 1)).round().astype(int).tolist()
    return numbers


def _cell(plan: Plan, members: int, split: bool, seed: int) -> Cell:
    """With all hospitals it is a run of table 1, so no setting changes."""
    if members == len(plan.training_sizes):
        return plan.cell(plan.noise[0], split, seed)
    changes = {"participation.members": members}
    return plan.cell(plan.noise[0], split, seed, variant=f"{members}hospitals", changes=changes)


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    metric, z, total = plan.metrics[0], plan.noise[0], found[0].summary["cohort"]["hospitals"]
    both = sorted(pairs(found, lambda one: one.summary["members"]), key=lambda pair: int(pair.key))

    def printed(members: int, split: bool) -> Sequence[float]:
        return table1(plan.task, "fedavg", z, split)[metric] if members == hospitals(plan.task) else ()

    columns = (
        ("hospitals N", lambda pair: str(pair.key)),
        ("δ", lambda pair: distinct([*pair.without, *pair.with_], "delta")),
        *PAIRED,
        *scored(metric, printed),
    )
    explanation = (
        f"z = {z:g}. The first N of {total} hospitals train; the others only lend their "
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
    )


def _claims(both: Sequence[Pair], metric: str) -> list[Claim]:
    """How much is lost from the most hospitals to the fewest, and whether the method loses a smaller part."""
    (lost, course), (lost_with, course_with) = (
        _lost({pair.key: mean_test(pair.runs(word), metric) for pair in both}) for word in ("without", "with")
    )
    falls = lost > 0 if not math.isnan(lost) else None
    smaller = lost_with < lost if falls and not math.isnan(lost_with) else None
    name = METRIC_NAMES[metric]
    return [
        Claim(f"Without intermediaries the {name} falls when hospitals leave", falls, course),
        Claim("With intermediaries a smaller part of it is lost", smaller, course_with),
        everywhere(f"The {name} is higher with intermediaries", gains(both, metric, "N")),
    ]


def _lost(scores: Mapping[int, float]) -> tuple[float, str]:
    """The fraction lost from the most hospitals to the fewest, and it in words; NaN without two of them."""
    known = {members: score for members, score in scores.items() if not math.isnan(score)}
    if len(known) < 2:
        return math.nan, ""
    most, fewest = max(known), min(known)
    change = known[fewest] - known[most]
    lost = -change / known[most] if known[most] > 0 else 0.0
    return lost, (
        f"{known[most]:.3f} with {most} hospitals, {known[fewest]:.3f} with {fewest} "
        f"({signed(change)}, {max(lost, 0):.0%} lost)"
    )


def _picture(plan: Plan, both: Sequence[Pair]) -> Picture:
    metric, z, lines = plan.metrics[0], plan.noise[0], []
    for word, colour, style in (("without", WITHOUT, "o--"), ("with", WITH, "^-")):
        runs = {pair.key: pair.runs(word) for pair in both}
        lines.append(Line(points(runs, metric), style, colour, f"{word} intermediaries"))
        paper = [(hospitals(plan.task), table1(plan.task, "fedavg", z, word == "with")[metric][0])]
        lines.append(Line(paper, "s", colour, f"{word}, the paper (its table 1)", hollow=True))
    name = METRIC_NAMES[metric]
    panel = Panel(
        "hospitals that train, N",
        f"test {name} on all hospitals' images\n(higher is better)",
        lines,
        title=f"Test {name} when fewer hospitals train (z = {z:g})",
        ticks=[pair.key for pair in both],
    )
    return Picture([panel], (7, 4.6), legends=2)


STUDY = Study(
    "figure2c", "Figure 2(c): test Dice against the number of hospitals", "prostate", cells, results, runs=10
)
