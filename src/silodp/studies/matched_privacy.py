"""Every method at the same ε of a hospital: what splitting is worth once the whole hospital is what counts.

A hospital of v intermediaries has the noise multiplier z/v. So each method runs with z = v·z_h: the
hospital's multiplier is z_h whatever v is. C is the private quantile and v is fixed: ε covers everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from silodp.errors import InputError
from silodp.intermediary import closed_form
from silodp.runs.schema import or_infinite
from silodp.studies.output import (
    METRIC_NAMES,
    defined_mean,
    epsilons,
    mean_test,
    run_rows,
    select,
    signed,
    spread,
    write_figure,
    write_markdown,
)
from silodp.studies.paper import METHODS
from silodp.studies.study import Cell, Found, Plan, Study
from silodp.tables import markdown_table, write_csv

_LINES = {
    "fedavg": ("#0072B2", "o-"),
    "fedadam": ("#D55E00", "s--"),
    "fednova": ("#009E73", "^-."),
    "dp2-rmsprop": ("#CC79A7", "D:"),
}
"""Colour and style of each method, told apart without colours too."""


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
    """v of the split hospitals: 2, and the closed form's at z_h, as far as the smallest hospital allows."""
    most = plan.most_intermediaries
    if most < 2:
        raise InputError(
            "matched-privacy: the smallest hospital has too few training images or patients for two "
            f"intermediaries of {plan.base.intermediaries.min_samples} images; give it more"
        )
    wished = math.floor(closed_form(z_h, plan.parameters, len(plan.training_sizes)))
    return sorted({2, min(max(wished, 2), most)})


def _levels(plan: Plan, optimizer: str) -> tuple[float, ...]:
    """z_h of a method; at small scale, to end in half an hour, only DP-FedAvg has all."""
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


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    write_csv(out / "results.csv", run_rows(found))
    parts = [_table(plan, found), _theory(plan), verdict(plan, found)]
    write_markdown(out, "Every method at the same ε of a hospital", plan, found, parts)
    _picture(out, plan, found)


def _runs(found: Sequence[Found], z_h: float, optimizer: str) -> dict[int, list[Found]]:
    """The runs of a method by v."""
    mine = select(found, z_hospital=z_h, method=METHODS[optimizer])
    counts = sorted({one.summary["intermediaries"] for one in mine})
    return {v: [one for one in mine if one.summary["intermediaries"] == v] for v in counts}


def _gains(unsplit: Sequence[Found], split: Sequence[Found], metric: str) -> list[float]:
    """Of splitting, seed by seed."""
    before = {one.cell.columns["seed"]: one.test(metric) for one in unsplit}
    after = {one.cell.columns["seed"]: one.test(metric) for one in split}
    return [after[seed] - before[seed] for seed in after if seed in before]


def _table(plan: Plan, found: Sequence[Found]) -> str:
    first, second = plan.metrics
    header = ["ε hospital", "z of the hospital", "method", "v", "ε intermediary", "z = v·z_h"]
    header += [
        METRIC_NAMES[first],
        "gain of splitting",
        METRIC_NAMES[second],
        "C in the last round",
        "σ of the mean",
    ]
    rows = []
    for z_h in (0.0, *plan.noise):
        for optimizer, name in METHODS.items():
            by_count = _runs(found, z_h, optimizer)
            for v, runs in by_count.items():
                gains = _gains(by_count.get(1, []), runs, first) if v > 1 else []
                ends = [one.rounds[-1] for one in runs]
                rows.append(
                    [
                        epsilons(runs)[0],
                        f"{z_h:g}" if z_h else "no privacy",
                        name,
                        str(v),
                        epsilons(runs)[1],
                        f"{v * z_h:g}" if z_h else "–",
                        spread([one.test(first) for one in runs]),
                        signed(defined_mean(gains)),
                        spread([one.test(second) for one in runs]),
                        f"{mean(or_infinite(end['clip_bound']) for end in ends):.3g}" if z_h else "–",
                        f"{mean(or_infinite(end['noise_std']) for end in ends):.2g}" if z_h else "–",
                    ]
                )
    return markdown_table(header, rows)


def _theory(plan: Plan) -> str:
    missing = [
        METHODS[optimizer] for optimizer in METHODS if set(_levels(plan, optimizer)) != set(plan.noise)
    ]
    return (
        "The noise on the mean of N hospitals is z·C/(N·v) = z_h·C/N in each coordinate whatever v is: at "
        "equal ε of a hospital splitting by itself buys no noise reduction. What remains is that C, the norm "
        "of an update from fewer images, changes, and that a mean of more updates is another direction. C is "
        "the private quantile and v is fixed in all of these runs, so ε covers everything that steered them. "
        "The paper has no such table: it compares at the same ε of an intermediary."
        + (f" {', '.join(missing)}: one noise level at this scale." if missing else "")
    )


def verdict(plan: Plan, found: Sequence[Found]) -> str:
    """Whether splitting helps at equal ε of a hospital, by the headline metric."""
    metric, gains, best = plan.metrics[0], {}, []
    for z_h in plan.noise:
        scores: dict[str, float] = {}
        for optimizer, name in METHODS.items():
            by_count = _runs(found, z_h, optimizer)
            for v, runs in by_count.items():
                scores[f"{name} with v = {v}"] = mean_test(runs, metric)
                if v > 1 and (own := _gains(by_count.get(1, []), runs, metric)):
                    gains[f"{name}, v = {v}, z_h = {z_h:g}"] = defined_mean(own)
        scores = {who: score for who, score in scores.items() if not math.isnan(score)}
        if scores:
            winner = max(scores, key=lambda key: scores[key])
            epsilon = epsilons(select(found, z_hospital=z_h))[0]
            best.append(f"{winner} at ε = {epsilon} ({scores[winner]:.3f})")
    undefined = [name for name, gain in gains.items() if math.isnan(gain)]
    known = sorted(gain for gain in gains.values() if not math.isnan(gain))
    unsaid = f" Undefined: {'; '.join(undefined)}." if undefined else ""
    if not known:
        return f"No pair of runs with and without splitting to compare.{unsaid}"
    helped = sum(gain > 0 for gain in known)
    count = {0: "in none", len(known): "in all"}.get(helped, f"in {helped}")
    spanned = f"from {signed(known[0])} to {signed(known[-1])}"
    return (
        f"At equal ε of a hospital, splitting raises the test {METRIC_NAMES[metric]} {count} of {len(known)} "
        f"pairs: {signed(mean(known))} in the mean, {spanned}.{unsaid} "
        f"The best of each level: {'; '.join(best)}."
    )


def _picture(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    metric = plan.metrics[0]
    figure = Figure(figsize=(4 * len(plan.noise) + 1.5, 4.4), layout="constrained")
    figure.suptitle("All points of a panel protect a hospital equally well: does splitting it help?")
    panels = figure.subplots(1, len(plan.noise), sharey=True, squeeze=False)[0]
    for place, z_h in zip(panels, plan.noise, strict=True):
        counts: set[int] = set()
        for optimizer, (colour, style) in _LINES.items():
            by_count = _runs(found, z_h, optimizer)
            if not by_count:
                continue
            counts |= set(by_count)
            means = [mean_test(runs, metric) for runs in by_count.values()]
            place.plot(list(by_count), means, style, color=colour, label=METHODS[optimizer])
        if plain := select(found, z_hospital=0.0, method=METHODS["fedavg"]):
            level = mean_test(plain, metric)
            place.axhline(level, color="#555555", linewidth=1, linestyle=(0, (6, 4)))
            place.annotate(
                "DP-FedAvg without privacy",
                (0.98, level),
                (0, -3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize="small",
                color="#555555",
            )
        epsilon = epsilons(select(found, z_hospital=z_h))[0]
        place.set(title=f"ε of a hospital = {epsilon}  (z/v = {z_h:g})", ylim=(0, 1), xscale="log")
        place.set_xlabel("v, intermediaries a hospital (1 = not split)")
        place.set_xticks(sorted(counts), [str(v) for v in sorted(counts)])
        place.xaxis.set_minor_locator(NullLocator())
        place.grid(alpha=0.3)
    panels[0].set_ylabel(f"test {METRIC_NAMES[metric]} (higher is better)")
    handles = {
        label: handle
        for place in panels
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    write_figure(out, "matched-privacy", figure)


MATCHED = Study(
    "matched-privacy",
    "Every method at the same ε of a hospital (not in the paper)",
    "prostate",
    cells,
    write,
    runs=22,
)
