"""Figure 1(b): noise level ξ and diversity φ against the number of intermediaries v, with Eq. 3's laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

import numpy as np

from silodp.studies.columns import Columns, group_by, privacy, show, spread, table
from silodp.studies.laws import HOLDS, MOST_OFF, QUANTITIES, Fits, QuantityKey, claim, fit
from silodp.studies.output import Results, run_rows
from silodp.studies.over_rounds import UNNOISED, require_diagnostics
from silodp.studies.pictures import GREY, WITH, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Scale, Study

_COUNTS: Mapping[Scale, Sequence[int]] = {
    "smoke": (1, 2, 3),
    "small": (1, 2, 3, 4, 6, 8, 10),
    "paper": range(1, 21),
}
_ROUNDS: Mapping[Scale, int] = {"smoke": 2, "small": 6, "paper": 10}

FIRST, MEAN = "round 1", "mean over the rounds"

_SHORT = {FIRST: "round_1", MEAN: "mean"}  # in results.csv

Points = Mapping[tuple[str, QuantityKey], Sequence[tuple[int, float]]]
"""(v, value) of each run, by way of measuring and quantity."""

_THEORY = (
    "Why: with ‖ζ‖ = zC√d/(Nv), Σ‖Δ‖ ≈ NvC and a sum ‖ΣΔ̂‖ that grows like C·v^s, ξ ∝ v^−(1+s), "
    "φ ∝ v^(1−s), and λ ∝ v^−2 whatever s is. s = 1 if the intermediaries' updates agree (ξ falls faster "
    "than 1/v, φ stays), s = ½ if they are orthogonal (φ ∝ √v); the paper's laws need s = 0, a sum that "
    "does not grow with v."
)
_PAPER = (
    "The paper prints a figure without numbers, and the laws ξ = ξ₁/v and φ = φ₁·v (its Eq. 3), "
    f"from which λ = λ₁/v² follows. A law holds where its R² is {HOLDS:g} or more and the best power of v is "
    f"within {MOST_OFF:g} of its own."
)


def cells(plan: Plan) -> list[Cell]:
    require_diagnostics(plan, "figure1b")
    return [_cell(plan, count, seed) for seed in plan.seeds for count in _counts(plan)]


def _counts(plan: Plan) -> list[int]:
    """The v for which the smallest hospital has enough images and patients."""
    return [count for count in _COUNTS[plan.scale] if count <= plan.most_intermediaries]


def _cell(plan: Plan, count: int, seed: int) -> Cell:
    changes = {
        "intermediaries.rule": "fixed",
        "intermediaries.count": count,
        "rounds": min(_ROUNDS[plan.scale], plan.base.rounds),
    }
    middle = plan.noise[len(plan.noise) // 2]
    return plan.cell(middle, count > 1, seed, variant=f"v{count}", changes=changes)


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    measured = [_measured(one) for one in found]
    points = {
        key: [(_count(one), own[key]) for one, own in zip(found, measured, strict=True) if key in own]
        for key in product((FIRST, MEAN), [quantity.key for quantity in QUANTITIES])
    }
    fits = [fit(points[how, quantity.key], quantity, how) for how in (FIRST, MEAN) for quantity in QUANTITIES]
    left_out = [count for count in _COUNTS[plan.scale] if count not in _counts(plan)]
    explanation = (
        f"z = {found[0].cell.columns['z']:g}; v is fixed in each run. In round 1 every v trains from the "
        "same model. Later the models differ, so the mean over all rounds also includes the effect of v on "
        "training; both are fitted, with a point for each run."
    )
    if left_out:
        explanation += f" The smallest hospital has too few images for v = {', '.join(map(str, left_out))}."
    return Results(
        "Figure 1(b), prostate: noise level and diversity over v",
        found,
        [explanation, _points_table(found, points), _fits_table(fits)],
        [claim(one) for one in fits],
        [_THEORY, _PAPER, UNNOISED],
        {"figure1b": _picture(found, points, fits)},
        {
            "results.csv": [
                {**row, **{f"{key}_{_SHORT[how]}": own.get((how, key)) for how, key in points}}
                for row, own in zip(run_rows(found), measured, strict=True)
            ],
            "rounds.csv": _rounds(found),
            "fits.csv": [_fit_row(one) for one in fits],
        },
    )


def _measured(one: CellRun) -> dict[tuple[str, QuantityKey], float]:
    """ξ, φ and λ of round 1 and their means over the rounds, where they have values."""
    values: dict[tuple[str, QuantityKey], float] = {}
    for quantity in QUANTITIES:
        rounds = {line["round"]: value for line in one.rounds if (value := line[quantity.key]) is not None}
        if 1 in rounds:
            values[FIRST, quantity.key] = rounds[1]
        if rounds:
            values[MEAN, quantity.key] = mean(rounds.values())
    return values


def _points_table(found: Sequence[CellRun], points: Points) -> str:
    runs = group_by(found, _count)

    def measured_in(how: str, key: QuantityKey) -> Callable[[int], str]:
        return lambda v: spread([y for count, y in points[how, key] if count == v])

    columns: Columns[int] = (
        ("v", str),
        *privacy(runs.__getitem__),
        *(
            (f"{quantity.symbol}, {how}", measured_in(how, quantity.key))
            for how in (FIRST, MEAN)
            for quantity in QUANTITIES
        ),
    )
    return table(sorted(runs), columns)


def _fits_table(fits: Sequence[Fits]) -> str:
    columns: Columns[Fits] = (
        ("measured in", lambda one: one.measured),
        ("law of Eq. 3", lambda one: f"{one.quantity.symbol} = {one.quantity.law}"),
        ("R²", lambda one: show(one.paper.r2, 2)),
        ("with a constant: R²", lambda one: show(one.with_constant.r2, 2)),
        ("free power of v", lambda one: show(one.free.power, 2)),
        ("R² in logarithms", lambda one: show(one.free.r2, 2)),
    )
    return table(fits, columns)


def _rounds(found: Sequence[CellRun]) -> list[dict[str, Any]]:
    return [
        {
            "v": line["intermediaries"],
            "seed": one.cell.columns["seed"],
            "round": line["round"],
            "clip_bound": line["clip_bound"],
            **{quantity.key: line[quantity.key] for quantity in QUANTITIES},
        }
        for one in found
        for line in one.rounds
    ]


def _fit_row(one: Fits) -> dict[str, Any]:
    return {
        "quantity": one.quantity.key,
        "measured": one.measured,
        "law": f"{one.quantity.symbol} = {one.quantity.law}",
        "factor": one.paper.factor,
        "r2": one.paper.r2,
        "factor_with_constant": one.with_constant.factor,
        "constant": one.with_constant.constant,
        "r2_with_constant": one.with_constant.r2,
        "free_power": one.free.power,
        "free_factor": one.free.factor,
        "r2_of_logarithms": one.free.r2,
    }


def _picture(found: Sequence[CellRun], points: Points, fits: Sequence[Fits]) -> Picture:
    counts = sorted({_count(one) for one in found})
    along = np.geomspace(counts[0], counts[-1], 50).tolist()
    panels = []
    for quantity in QUANTITIES:
        symbol, lines = quantity.symbol, []
        for how, marker in ((FIRST, "s"), (MEAN, "o")):
            measured = points[how, quantity.key]
            lines.append(Line(measured, marker, WITH, f"measured, {how}", hollow=how == FIRST))
        ours = next(one for one in fits if one.quantity is quantity and one.measured == MEAN)
        best = f"best power: v^{ours.free.power:.2f}".replace("-", "−")
        for law, style, colour, name, of in (
            (ours.paper, "--", GREY, f"Eq. 3: {symbol} = {quantity.law}", "R²"),
            (ours.free, "-", WITH, best, "R² of logarithms"),
        ):
            if not math.isnan(law.factor):
                well = "" if math.isnan(law.r2) else f", {of} = {law.r2:.2f}"
                curve = [(v, law(v)) for v in along]
                lines.append(Line(curve, style, colour, name + well))
        panels.append(
            Panel(
                "intermediaries a hospital, v (log scale)",
                f"{symbol} (log scale)",
                lines,
                title=f"{symbol}: {quantity.meaning}",
                ticks=counts,
                y_range=None,
                log="xy",
            )
        )
    title = "Does the noise level fall like 1/v and the diversity grow like v? Straight lines are powers of v"
    return Picture(panels, (12, 4.8), title, legends=0)


def _count(one: CellRun) -> int:
    """v, which is fixed in each run."""
    return one.cell.experiment.intermediaries.asked or 1


STUDY = Study(
    "figure1b", "Figure 1(b): noise level and diversity against the number of intermediaries", "prostate",
    cells, results, runs=7,
)  # fmt: skip
