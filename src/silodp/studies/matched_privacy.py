"""Every method at the same ε of a hospital: what splitting is worth if whole hospitals must be protected.

A hospital of v intermediaries has the noise multiplier z/v. So each method runs with z = v·z_h: the
hospital's multiplier is z_h whatever v is. C is the private quantile and v is fixed: ε covers everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal

from silodp.errors import InputError
from silodp.intermediary import closed_form
from silodp.runs.schema import or_infinite
from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import (
    METRIC_NAMES,
    defined_mean,
    epsilon,
    group_by,
    mean_test,
    points,
    score_label,
    select,
    signed,
    spread_test,
    table,
)
from silodp.studies.output import Results
from silodp.studies.paper import METHODS
from silodp.studies.pictures import BLUE, GREEN, ORANGE, PINK, Level, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study

_LINES = {
    "fedavg": (BLUE, "o-"),
    "fedadam": (ORANGE, "s--"),
    "fednova": (GREEN, "^-."),
    "dp2-rmsprop": (PINK, "D:"),
}
"""Colour and style of each method, distinguishable without colours, too."""


def cells(plan: Plan) -> list[Cell]:
    counts = {z_h: split_counts(plan, z_h) for z_h in plan.noise}
    return [
        _cell(plan, z_h, v, seed, optimizer)
        for seed in plan.seeds
        for optimizer in METHODS
        for z_h in (0.0, *_levels(plan, optimizer))
        for v in (1, *(counts[z_h] if z_h else ()))
    ]


def split_counts(plan: Plan, z_h: float) -> list[int]:
    """The v to try: 2, and the closed form's at z_h up to what the smallest hospital allows."""
    most = plan.most_intermediaries
    if most < 2:
        raise InputError(
            "matched-privacy: the smallest hospital has too few training images or patients for two "
            f"intermediaries of {plan.base.intermediaries.min_samples} images; give it more"
        )
    wished = math.floor(closed_form(z_h, plan.parameters, len(plan.training_sizes)))
    return sorted({2, min(max(wished, 2), most)})


def _levels(plan: Plan, optimizer: str) -> tuple[float, ...]:
    """z_h of a method; at small scale only DP-FedAvg has all, to finish in half an hour."""
    if plan.scale == "small" and optimizer != "fedavg":
        return plan.noise[len(plan.noise) // 2 :][:1]
    return plan.noise


def _cell(plan: Plan, z_h: float, v: int, seed: int, optimizer: str) -> Cell:
    if z_h:
        changes = {"clipping.rule": "quantile", "intermediaries.rule": "fixed", "intermediaries.count": v}
        cell = plan.cell(v * z_h, v > 1, seed, optimizer=optimizer, variant=f"matched-v{v}", changes=changes)
    else:
        cell = plan.cell(0.0, False, seed, optimizer=optimizer)
    return replace(cell, columns={**cell.columns, "z_hospital": z_h})


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    rows = [
        Runs(z_h, name, v, runs)
        for z_h in (0.0, *plan.noise)
        for name in METHODS.values()
        for v, runs in sorted(group_by(select(found, z_hospital=z_h, method=name), _count).items())
    ]
    return Results(
        "Every method at the same ε of a hospital",
        found,
        [_table(plan, rows), _theory(plan)],
        claims(plan, rows),
        pictures={"matched-privacy": _picture(plan, rows)},
    )


@dataclass(frozen=True)
class Runs:
    """Runs that differ only in their seeds."""

    z_h: float
    method: str
    v: int
    runs: list[CellRun]

    def gain(self, rows: Sequence[Runs], metric: str) -> float:
        """Mean gain of splitting over seeds; NaN where there is nothing to compare with."""
        if self.v == 1:
            return math.nan
        whole = [row for row in rows if (row.z_h, row.method, row.v) == (self.z_h, self.method, 1)]
        before = {one.cell.columns["seed"]: one.test(metric) for row in whole for one in row.runs}
        after = {one.cell.columns["seed"]: one.test(metric) for one in self.runs}
        return defined_mean(after[seed] - before[seed] for seed in after if seed in before)

    def at_end(self, key: Literal["clip_bound", "noise_std"], digits: int) -> str:
        """Mean over runs of a value in the last round."""
        ends = [or_infinite(one.rounds[-1][key]) for one in self.runs]
        return f"{mean(ends):.{digits}g}" if self.z_h else "–"


def _count(one: CellRun) -> int:
    return one.summary["intermediaries"]


def _table(plan: Plan, rows: Sequence[Runs]) -> str:
    first, second = plan.metrics
    columns = (
        ("ε hospital", lambda row: epsilon(row.runs, "hospital")),
        ("z of the hospital", lambda row: f"{row.z_h:g}" if row.z_h else "no privacy"),
        ("method", lambda row: row.method),
        ("v", lambda row: str(row.v)),
        ("ε intermediary", lambda row: epsilon(row.runs, "intermediary")),
        ("z = v·z_h", lambda row: f"{row.v * row.z_h:g}" if row.z_h else "–"),
        (METRIC_NAMES[first], lambda row: spread_test(row.runs, first)),
        ("gain of splitting", lambda row: signed(row.gain(rows, first))),
        (METRIC_NAMES[second], lambda row: spread_test(row.runs, second)),
        ("C in the last round", lambda row: row.at_end("clip_bound", 3)),
        ("σ of the mean", lambda row: row.at_end("noise_std", 2)),
    )
    return table(rows, columns)


def _theory(plan: Plan) -> str:
    missing = [
        METHODS[optimizer] for optimizer in METHODS if set(_levels(plan, optimizer)) != set(plan.noise)
    ]
    return (
        "The noise on the mean of N hospitals is z·C/(N·v) = z_h·C/N in each coordinate whatever v is: at "
        "equal ε of a hospital splitting itself does not reduce noise. What changes is C, the norm of an "
        "update from fewer images, and the direction of the mean of more updates. C is the private "
        "quantile and v is fixed in all of these runs, so ε covers everything that steered them. "
        "The paper has no such table: it compares at the same ε of an intermediary."
        + (f" {', '.join(missing)}: one noise level at this scale." if missing else "")
    )


def claims(plan: Plan, rows: Sequence[Runs]) -> list[Claim]:
    """Claims that splitting helps at equal ε of a hospital, by the headline metric."""
    metric = plan.metrics[0]
    found = []
    for method in METHODS.values():
        split = [row for row in rows if row.method == method and row.v > 1]
        gains = {f"z_h = {row.z_h:g}, v = {row.v}": row.gain(rows, metric) for row in split}
        found.append(everywhere(f"{method}: splitting raises the {METRIC_NAMES[metric]}", gains))
    best = []
    for z_h in plan.noise:
        scores = {row.method + f" with v = {row.v}": row for row in rows if row.z_h == z_h}
        known = {name: row for name, row in scores.items() if not math.isnan(mean_test(row.runs, metric))}
        if len(known) > 1:
            best.append(max(known.items(), key=lambda item: mean_test(item[1].runs, metric)))
    shown = [
        f"{name} at ε = {epsilon(row.runs, 'hospital')} ({mean_test(row.runs, metric):.3f})"
        for name, row in best
    ]
    split_best = all(row.v > 1 for _, row in best) if best else None
    return [*found, Claim("At each ε of a hospital the best splits it", split_best, "; ".join(shown))]


def _picture(plan: Plan, rows: Sequence[Runs]) -> Picture:
    metric = plan.metrics[0]
    plain = [row for row in rows if not row.z_h and row.method == METHODS["fedavg"]]
    panels: list[Panel] = []
    for z_h in plan.noise:
        here = [row for row in rows if row.z_h == z_h]
        lines = []
        for optimizer, (colour, style) in _LINES.items():
            runs = {float(row.v): row.runs for row in here if row.method == METHODS[optimizer]}
            lines.append(Line(points(runs, metric), style, colour, METHODS[optimizer]))
        spent = epsilon([one for row in here for one in row.runs], "hospital")
        panels.append(
            Panel(
                "v, intermediaries a hospital (1 = not split)",
                "" if panels else score_label(plan),
                lines,
                [Level(mean_test(row.runs, metric), "DP-FedAvg without privacy") for row in plain],
                title=f"ε of a hospital = {spent}  (z/v = {z_h:g})",
                ticks=sorted({row.v for row in here}),
                log="x",
            )
        )
    title = "All points of a panel protect a hospital equally well: does splitting it help?"
    return Picture(panels, (4 * len(plan.noise) + 1.5, 4.4), title)


MATCHED = Study(
    "matched-privacy", "Every method at the same ε of a hospital (not in the paper)", "prostate", cells,
    results, runs=22,
)  # fmt: skip
