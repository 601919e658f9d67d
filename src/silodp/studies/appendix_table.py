"""The shape that three tables of the appendix share: a row a way of training, at each noise level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silodp.privacy.events import UNITS, Unit
from silodp.studies.output import (
    METRIC_NAMES,
    WITH,
    WITHOUT,
    between,
    distinct,
    epsilons,
    mean_test,
    run_rows,
    select,
    show_printed,
    signed,
    spread,
    write_figure,
    write_markdown,
)
from silodp.studies.paper import appendix, table1
from silodp.studies.study import Cell, Found, Plan
from silodp.tables import markdown_table, write_csv


@dataclass(frozen=True)
class Row:
    """One way of training with DP-FedAvg.

    Attributes:
        name: what the table calls it.
        split: whether hospitals are split into intermediaries.
        variant: a word for `changes`; empty for a run of table 1.
        changes: settings of this row.
        printed: where the paper prints it: table and row of the appendix; table 1 if empty.
    """

    name: str
    split: bool
    variant: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    printed: tuple[str, str] | None = None

    def of(self, found: Sequence[Found], z: float) -> list[Found]:
        word = "with" if self.split else "without"
        return select(found, z=z, intermediaries=word, variant=self.variant)

    def paper(self, z: float) -> tuple[float, ...] | None:
        """Dice and IoU."""
        if self.printed:
            return appendix(*self.printed, z)
        values = table1("prostate", "fedavg", z, self.split)
        return (values[0], values[2]) if values else None


WITHOUT_SPLITTING = Row("DP-FedAvg", False)
WITH_SPLITTING = Row("DP-FedAvg + intermediaries", True)
"""Two cells of table 1, which every table repeats."""


def cells_of(plan: Plan, rows: Sequence[Row]) -> list[Cell]:
    return [
        plan.cell(z, row.split, seed, variant=row.variant, changes=row.changes)
        for seed in plan.seeds
        for z in plan.noise
        for row in rows
    ]


def write_table(
    out: Path, plan: Plan, found: Sequence[Found], rows: Sequence[Row], title: str, sentences: Sequence[str]
) -> None:
    """results.csv, table.md with a table for each noise level, and dice.svg and .png."""
    write_csv(out / "results.csv", run_rows(found))
    tables = [f"## z = {z:g}\n\n{_table(plan, found, rows, z)}" for z in plan.noise]
    write_markdown(out, title, plan, found, [*tables, "## What it says", *sentences])
    _picture(out, plan, found, rows, title)


def _table(plan: Plan, found: Sequence[Found], rows: Sequence[Row], z: float) -> str:
    first, second = (METRIC_NAMES[metric] for metric in plan.metrics)
    header = ["method", "ε hospital", "ε intermediary", "v, last round", "rounds", first, second]
    header += [f"paper: {first}", second]
    lines = []
    for row in rows:
        runs = row.of(found, z)
        lines.append(
            [
                row.name,
                *epsilons(runs),
                distinct(runs, "intermediaries"),
                distinct(runs, "rounds"),
                *(spread([one.test(metric) for one in runs]) for metric in plan.metrics),
                *(show_printed(row.paper(z), place) for place in (0, 1)),
            ]
        )
    return markdown_table(header, lines)


def compare(plan: Plan, found: Sequence[Found], row: Row, other: Row) -> str:
    """Where `row` has the better headline metric than `other`, and what the paper says of that."""
    metric, changes, printed = plan.metrics[0], {}, {}
    for z in plan.noise:
        mine, theirs, papers = row.of(found, z), other.of(found, z), (row.paper(z), other.paper(z))
        if mine and theirs:
            changes[z] = mean_test(mine, metric) - mean_test(theirs, metric)
        if papers[0] and papers[1]:
            printed[z] = papers[0][0] - papers[1][0]
    if not changes:
        return f"{row.name} against {other.name}: no pair of runs."
    return (
        f"{row.name} against {other.name}: test {METRIC_NAMES[metric]} is {_changed(changes)}; in the paper "
        f"it is {_changed(printed)}."
    )


def _changed(changes: Mapping[float, float]) -> str:
    """«higher at 2 of 3 z (+0.100 at z = 0.3, …)»."""
    known = {z: change for z, change in changes.items() if not math.isnan(change)}
    undefined = [f"undefined at z = {z:g}" for z in changes if z not in known]
    if not known:
        return ", ".join(undefined)
    up = sum(change > 0 for change in known.values())
    where = {0: "no", len(known): "every"}.get(up, f"{up} of {len(known)}")
    listed = [f"{signed(change)} at z = {z:g}" for z, change in known.items()]
    return f"higher at {where} z ({', '.join(listed + undefined)})"


def cost(plan: Plan, found: Sequence[Found], row: Row, other: Row) -> str:
    """What `row` costs a hospital, then an intermediary where that is another unit, beside `other`."""
    levels = [z for z in plan.noise if row.of(found, z) and other.of(found, z)]
    if not levels:
        return f"ε of {row.name} beside {other.name}: no pair of runs."

    def listed(which: Row, unit: Unit) -> str:
        return ", ".join(between([one.epsilon(unit) for one in which.of(found, z)]) for z in levels)

    runs = [one for z in levels for which in (row, other) for one in which.of(found, z)]
    lasting = not any(one.summary["epsilon"]["withdrawn"] for one in runs)
    units = UNITS if (row.split or other.split) and lasting else UNITS[:1]
    parts = [f"{listed(row, unit)} instead of {listed(other, unit)} for one {unit}" for unit in units]
    at = ", ".join(f"{z:g}" for z in levels)
    return f"{row.name} costs ε = {'; '.join(parts)} (at z = {at})."


_MARKERS = ("o", "s", "^", "D")


def _picture(out: Path, plan: Plan, found: Sequence[Found], rows: Sequence[Row], title: str) -> None:
    from matplotlib.figure import Figure

    metric = plan.metrics[0]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    figure.suptitle(title)
    ours, paper = figure.subplots(1, 2, sharey=True)
    for marker, row in zip(_MARKERS, rows, strict=False):
        style = {
            "color": WITH if row.split else WITHOUT,
            "marker": marker,
            "linestyle": "--" if row.variant else "-",
            "label": row.name,
        }
        levels = [z for z in plan.noise if row.of(found, z)]
        ours.plot(levels, [mean_test(row.of(found, z), metric) for z in levels], **style)
        values = {z: row.paper(z) for z in plan.noise}
        known = {z: value[0] for z, value in values.items() if value}
        paper.plot(list(known), list(known.values()), markerfacecolor="none", **style)
    for place, where in ((ours, "these runs"), (paper, "as the paper prints them")):
        place.set(title=where, xlabel="noise multiplier z (more noise →)", xticks=plan.noise, ylim=(0, 1))
        place.grid(alpha=0.3)
    ours.set_ylabel(f"test {METRIC_NAMES[metric]} (higher is better)")
    handles, labels = ours.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    write_figure(out, metric, figure)
