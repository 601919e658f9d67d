"""Figure 1(b): noise level ξ and diversity φ against the number of intermediaries v, with Eq. 3's laws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from silodp.studies.laws import QUANTITIES, Fits, fit, reading
from silodp.studies.output import WITH, epsilons, run_rows, spread, write_figure, write_markdown
from silodp.studies.over_rounds import UNNOISED, need_diagnostics
from silodp.studies.study import Cell, Found, Plan, Scale, Study
from silodp.tables import markdown_table, write_csv

_COUNTS: Mapping[Scale, Sequence[int]] = {
    "smoke": (1, 2, 3),
    "small": (1, 2, 3, 4, 6, 8, 10),
    "paper": range(1, 21),
}
_ROUNDS: Mapping[Scale, int] = {"smoke": 2, "small": 6, "paper": 10}


FIRST, MEAN = "round 1", "mean over the rounds"


def cells(plan: Plan) -> list[Cell]:
    need_diagnostics(plan, "figure1b")
    return [_cell(plan, count, seed) for seed in plan.seeds for count in _counts(plan)]


def _counts(plan: Plan) -> list[int]:
    """Those for which the smallest hospital has images and patients."""
    return [count for count in _COUNTS[plan.scale] if count <= plan.most_intermediaries]


def _cell(plan: Plan, count: int, seed: int) -> Cell:
    changes = {
        "intermediaries.rule": "fixed",
        "intermediaries.count": count,
        "rounds": min(_ROUNDS[plan.scale], plan.base.rounds),
    }
    middle = plan.noise[len(plan.noise) // 2]
    return plan.cell(middle, count > 1, seed, variant=f"v{count}", changes=changes)


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    values = measured(found)
    fits = [fit(values, quantity, how) for how in (FIRST, MEAN) for quantity in QUANTITIES]
    write_csv(out / "results.csv", _results(found))
    write_csv(out / "rounds.csv", _rounds(found))
    write_csv(out / "fits.csv", [_fit_row(one) for one in fits])
    left_out = [count for count in _COUNTS[plan.scale] if count not in _counts(plan)]
    explanation = (
        f"z = {found[0].cell.columns['z']:g}; v is fixed in each run. In round 1 every v trains from the "
        "same model. Later each run has a model of its own, so the mean over all rounds also holds what v "
        "did to training; both are fitted, a point a run."
    )
    if left_out:
        explanation += f" The smallest hospital has no images for v = {', '.join(map(str, left_out))}."
    theory = (
        "Why: with ‖ζ‖ = zC√d/(Nv), Σ‖Δ‖ ≈ NvC and a sum ‖ΣΔ̂‖ that grows like C·v^s, ξ ∝ v^−(1+s), "
        "φ ∝ v^(1−s), and λ ∝ v^−2 whatever s is. s = 1 if the intermediaries' updates agree (ξ falls faster "
        "than 1/v, φ stays), s = ½ if they are orthogonal (φ ∝ √v); the paper's laws need s = 0, a sum that "
        "does not grow with v."
    )
    parts = [explanation, _points_table(found, values), _fits_table(fits), reading(fits), theory]
    parts.append(
        "The paper prints a picture without numbers, and the laws ξ = ξ₁/v and φ = φ₁·v (its Eq. 3), "
        "from which λ = λ₁/v² follows."
    )
    parts.append(UNNOISED)
    write_markdown(out, "Figure 1(b), prostate: noise level and diversity over v", plan, found, parts)
    _picture(out, found, values, fits)


def measured(found: Sequence[Found]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """By how it is measured and quantity: (v, value) of each run; rounds without a number are left out."""
    values: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in found:
        for quantity in QUANTITIES:
            lines = ((line["round"], line[quantity.key]) for line in one.rounds)
            rounds = [(number, value) for number, value in lines if value is not None]
            if not rounds:
                continue
            v, (first, value) = _count(one), rounds[0]
            if first == 1:
                values.setdefault((FIRST, quantity.key), []).append((v, value))
            average = mean(value for _, value in rounds)
            values.setdefault((MEAN, quantity.key), []).append((v, average))
    return values


def _points_table(
    found: Sequence[Found], values: Mapping[tuple[str, str], Sequence[tuple[int, float]]]
) -> str:
    header = ["v", "ε hospital", "ε intermediary"]
    header += [f"{quantity.symbol}, {how}" for how in (FIRST, MEAN) for quantity in QUANTITIES]
    rows = []
    for v in sorted({_count(one) for one in found}):
        runs = [one for one in found if _count(one) == v]
        rows.append(
            [
                str(v),
                *epsilons(runs),
                *(
                    spread([y for count, y in values.get((how, quantity.key), []) if count == v])
                    for how in (FIRST, MEAN)
                    for quantity in QUANTITIES
                ),
            ]
        )
    return markdown_table(header, rows)


def _fits_table(fits: Sequence[Fits]) -> str:
    header = [
        "measured in",
        "law of Eq. 3",
        "R²",
        "with a constant: R²",
        "free power of v",
        "R² in logarithms",
    ]
    rows = [
        [
            one.measured,
            f"{one.quantity.symbol} = {one.quantity.law}",
            *map(_number, (one.paper.r2, one.with_constant.r2, one.free.power, one.free.r2)),
        ]
        for one in fits
    ]
    return markdown_table(header, rows)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _results(found: Sequence[Found]) -> list[dict[str, Any]]:
    """A line a run, with both ways of measuring."""
    alone = [measured([one]) for one in found]
    return [
        {
            **row,
            **{
                f"{quantity.key}_{short}": next((y for _, y in values.get((how, quantity.key), [])), None)
                for how, short in ((FIRST, "round_1"), (MEAN, "mean"))
                for quantity in QUANTITIES
            },
        }
        for row, values in zip(run_rows(found), alone, strict=True)
    ]


def _rounds(found: Sequence[Found]) -> list[dict[str, Any]]:
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


def _picture(
    out: Path,
    found: Sequence[Found],
    values: Mapping[tuple[str, str], Sequence[tuple[int, float]]],
    fits: Sequence[Fits],
) -> None:
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    counts = sorted({_count(one) for one in found})
    line = np.geomspace(counts[0], counts[-1], 50)
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    for axes, quantity in zip(figure.subplots(1, 3), QUANTITIES, strict=True):
        for how, marker, fill in ((FIRST, "s", "none"), (MEAN, "o", WITH)):
            if points := values.get((how, quantity.key)):
                axes.plot(
                    *zip(*points, strict=True),
                    marker,
                    color=WITH,
                    markerfacecolor=fill,
                    label=f"measured, {how}",
                )
        ours = next(one for one in fits if one.quantity is quantity and one.measured == MEAN)
        for law, look, name, of in (
            (ours.paper, "--", f"Eq. 3: {quantity.symbol} = {quantity.law}", "R²"),
            (ours.free, "-", f"best power: v^{ours.free.power:.2f}".replace("-", "−"), "R² of logarithms"),
        ):
            if not math.isnan(law.factor):
                fits_well = "" if math.isnan(law.r2) else f", {of} = {law.r2:.2f}"
                colour = "#555555" if law is ours.paper else WITH
                axes.plot(line, law(line), look, color=colour, label=name + fits_well, linewidth=1.3)
        axes.set(xscale="log", yscale="log", xlabel="intermediaries a hospital, v (log scale)")
        axes.set_ylabel(f"{quantity.symbol} (log scale)")
        axes.set_title(f"{quantity.symbol}: {quantity.meaning}", fontsize="medium")
        axes.set_xticks(counts, list(map(str, counts)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    figure.suptitle(
        "Does the noise level fall like 1/v and the diversity grow like v? Straight lines are powers of v"
    )
    write_figure(out, "figure1b", figure)


STUDY = Study(
    "figure1b",
    "Figure 1(b): noise level and diversity against the number of intermediaries",
    "prostate",
    cells,
    write,
    runs=7,
)


def _count(one: Found) -> int:
    """v, which each run fixes."""
    return one.cell.experiment.intermediaries.asked or 1
