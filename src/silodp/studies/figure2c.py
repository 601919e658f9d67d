"""Figure 2(c): fewer hospitals, the same test images, without and with intermediaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from silodp.errors import InputError
from silodp.studies.output import (
    METRIC_NAMES,
    PAIRED,
    WITH,
    WITHOUT,
    distinct,
    mean_test,
    paired_privacy,
    run_rows,
    show_printed,
    signed,
    spread,
    write_figure,
    write_markdown,
)
from silodp.studies.over_rounds import in_words
from silodp.studies.paper import printed, table1
from silodp.studies.study import Cell, Found, Plan, Study
from silodp.tables import markdown_table, write_csv

MOST = 5
"""So many numbers of hospitals: the paper's 2…6, evenly spread where a cohort has more."""

Means = dict[str, dict[int, float]]
"""The headline metric by "without" or "with" and the number of hospitals."""


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
    """With all hospitals it is table 1's own run, so nothing is set."""
    if members == len(plan.training_sizes):
        return plan.cell(plan.noise[0], split, seed)
    changes = {"participation.members": members}
    return plan.cell(plan.noise[0], split, seed, variant=f"{members}hospitals", changes=changes)


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    metric = plan.metrics[0]
    write_csv(out / "results.csv", run_rows(found))
    write_csv(out / "points.csv", _points(found, metric))
    means = _means(found, metric)
    total = found[0].summary["cohort"]["hospitals"]
    explanation = (
        f"z = {plan.noise[0]:g}. The first N of {total} hospitals train; the others only lend their "
        f"validation and test images, so that every number is of the same test images, those of all {total}. "
        "δ follows N by the paper's rule, 10^-k ≤ 1/N: compare the ε of rows with the same δ only."
    )
    parts = [explanation, _table(plan, found), reading(means, METRIC_NAMES[metric]), in_words("c")]
    write_markdown(out, "Figure 2(c), prostate: fewer hospitals", plan, found, parts)
    _picture(out, plan, found, means)


def _members(found: Sequence[Found]) -> list[int]:
    return sorted({one.summary["members"] for one in found})


def _runs(found: Sequence[Found], members: int, word: str) -> list[Found]:
    return [
        one
        for one in found
        if one.summary["members"] == members and one.cell.columns["intermediaries"] == word
    ]


def _points(found: Sequence[Found], metric: str) -> list[dict[str, Any]]:
    """What is drawn: a line a run."""
    return [
        {
            "hospitals": one.summary["members"],
            "intermediaries": one.cell.columns["intermediaries"],
            "seed": one.cell.columns["seed"],
            f"test_{metric}": one.test(metric),
        }
        for one in sorted(found, key=lambda one: one.summary["members"])
    ]


def _means(found: Sequence[Found], metric: str) -> Means:
    return {
        word: {
            members: mean_test(runs, metric)
            for members in _members(found)
            if (runs := _runs(found, members, word))
        }
        for word in ("without", "with")
    }


def _table(plan: Plan, found: Sequence[Found]) -> str:
    metric, rows = plan.metrics[0], []
    header = ["hospitals N", "δ", *PAIRED]
    header += [f"{METRIC_NAMES[metric]}: without", "with", "gain", "paper: without", "with"]
    for members in _members(found):
        without, with_ = _runs(found, members, "without"), _runs(found, members, "with")
        as_printed = [
            show_printed(table1(plan.task, "fedavg", plan.noise[0], split))
            if members == printed()["table1"][plan.task]["hospitals"]
            else "–"
            for split in (False, True)
        ]
        rows.append(
            [
                str(members),
                distinct([*without, *with_], "delta"),
                *paired_privacy(without, with_),
                *(spread([one.test(metric) for one in runs]) for runs in (without, with_)),
                signed(mean_test(with_, metric) - mean_test(without, metric)),
                *as_printed,
            ]
        )
    return markdown_table(header, rows)


def reading(means: Means, metric: str) -> str:
    """What is lost from the most hospitals to the fewest, and whether the method loses a smaller part."""
    sentences, lost = [], {}
    known = {
        word: {n: value for n, value in values.items() if not math.isnan(value)}
        for word, values in means.items()
    }
    for word, values in known.items():
        if len(values) > 1:
            fewest, most = min(values), max(values)
            change = values[fewest] - values[most]
            lost[word] = -change / values[most] if values[most] > 0 else 0.0
            share = f", {lost[word]:.0%} lost" if lost[word] > 0 else ""
            sentences.append(
                f"{word.capitalize()} intermediaries the {metric} goes from {values[most]:.3f} with {most} "
                f"hospitals to {values[fewest]:.3f} with {fewest} ({signed(change)}{share})."
            )
    if len(lost) == 2:
        if lost["without"] <= 0:
            verdict = "DP-FedAvg does not lose when hospitals leave, unlike in the paper"
        elif lost["with"] < lost["without"]:
            verdict = "The method loses a smaller part when hospitals leave, as in the paper"
        else:
            verdict = "The method does not lose a smaller part when hospitals leave, unlike in the paper"
        both = [n for n in known["with"] if n in known["without"]]
        better = [n for n in both if known["with"][n] > known["without"][n]]
        sentences.append(
            f"{verdict}; with intermediaries the {metric} is higher at {len(better)} of {len(both)} N."
        )
    undefined = [f"{word}, N = {n}" for word in means for n in means[word] if n not in known[word]]
    if undefined:
        sentences.append(f"The {metric} is undefined for {'; '.join(undefined)}.")
    return " ".join(sentences) or "Too few runs to compare numbers of hospitals."


def _picture(out: Path, plan: Plan, found: Sequence[Found], means: Means) -> None:
    from matplotlib.figure import Figure

    metric = plan.metrics[0]
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    for word, colour, style in (("without", WITHOUT, "o--"), ("with", WITH, "^-")):
        values = means[word]
        axes.plot(list(values), list(values.values()), style, color=colour, label=f"{word} intermediaries")
        points = [(one.summary["members"], one.test(metric)) for n in values for one in _runs(found, n, word)]
        if len(points) > len(values):  # several seeds: each is shown
            axes.plot(*zip(*points, strict=True), style[0], color=colour, alpha=0.35, markersize=4)
        cell = table1(plan.task, "fedavg", plan.noise[0], word == "with")
        if cell:
            axes.plot(
                printed()["table1"][plan.task]["hospitals"], cell[0], "s", color=colour, markersize=8,
                markerfacecolor="none", label=f"{word}, the paper (its table 1)",
            )  # fmt: skip
    axes.set(xlabel="hospitals that train, N", xticks=_members(found), ylim=(0, 1))
    axes.set_ylabel(f"test {METRIC_NAMES[metric]} on all hospitals' images\n(higher is better)")
    axes.set_title(
        f"Test {METRIC_NAMES[metric]} when fewer hospitals train (z = {plan.noise[0]:g})",
        loc="left",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    write_figure(out, "figure2c", figure)


STUDY = Study(
    "figure2c", "Figure 2(c): test Dice against the number of hospitals", "prostate", cells, write, runs=10
)
