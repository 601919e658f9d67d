"""Three tables of the appendix: subsampled hospitals, more rounds, more frequent aggregation.

Each has, at each noise level, a row for each way of training with DP-FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import (
    METRIC_NAMES,
    Columns,
    Pair,
    between,
    distinct,
    gains,
    points,
    privacy,
    score_label,
    select,
    spread_test,
    table,
)
from silodp.studies.output import Results
from silodp.studies.paper import appendix, table1
from silodp.studies.pictures import WITH, WITHOUT, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study
from silodp.tables import markdown_table

FACTOR = 3  # times the rounds


@dataclass(frozen=True)
class Row:
    """One way of training.

    Attributes:
        name: what the table calls it.
        split: whether hospitals are split into intermediaries.
        variant: a word for `changes`; empty for a run of table 1.
        changes: settings of this row.
        printed: table and row of the appendix where the paper prints it; None: table 1.
    """

    name: str
    split: bool
    variant: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    printed: tuple[str, str] | None = None

    def of(self, found: Sequence[CellRun], z: float) -> list[CellRun]:
        word = "with" if self.split else "without"
        return select(found, z=z, intermediaries=word, variant=self.variant)

    def paper(self, metric: str, z: float) -> float:
        if self.printed:
            return appendix(*self.printed, z)[metric]
        return table1("prostate", "fedavg", z, self.split)[metric][0]


PLAIN, SPLIT = Row("DP-FedAvg", False), Row("DP-FedAvg + intermediaries", True)
"""Two rows of table 1, which every table repeats."""

DRAWN = Row(
    "DP-FedAvg, 2/3 of the hospitals",
    False,
    "two-thirds",
    {"participation.rule": "fraction", "participation.rate": 2 / 3},
    ("subsampling_two_thirds", "DP-FedAvg (subsample)"),
)


def longer(plan: Plan, split: bool) -> Row:
    rounds = FACTOR * plan.base.rounds
    name = "DP-FedAvg + intermediaries" if split else "DP-FedAvg"
    printed = ("rounds_300", "DP-FedAvg+intermediary" if split else "DP-FedAvg")
    return Row(f"{name}, three times the rounds", split, f"rounds{rounds}", {"rounds": rounds}, printed)


def more_often(plan: Plan) -> Row:
    changes = {"rounds": FACTOR * plan.base.rounds, "local.epochs": plan.base.local.epochs / FACTOR}
    printed = ("communication_x3", "DP-FedAvg")
    return Row("DP-FedAvg, three times as often", False, "often", changes, printed)


def subsampling(plan: Plan, found: Sequence[CellRun]) -> tuple[list[Claim], str]:
    claims = [
        better(plan, found, PLAIN, DRAWN),
        better(plan, found, SPLIT, DRAWN),
        cheaper(plan, found, DRAWN, PLAIN),
        observed(plan, found),
    ]
    return (
        claims,
        "The paper prints no ε with sampling. Fewer hospitals in a round mean more noise on their mean.",
    )


def rounds(plan: Plan, found: Sequence[CellRun]) -> tuple[list[Claim], str]:
    long, long_split = longer(plan, False), longer(plan, True)
    claims = [
        better(plan, found, long, PLAIN),
        better(plan, found, long_split, SPLIT),
        better(plan, found, long_split, long),
        cheaper(plan, found, PLAIN, long),
        cheaper(plan, found, SPLIT, long_split),
    ]
    return claims, (
        f"The paper's rounds are 100 and 300, here {plan.base.rounds} and {FACTOR * plan.base.rounds}; "
        "it prints no ε for the longer runs."
    )


def frequency(plan: Plan, found: Sequence[CellRun]) -> tuple[list[Claim], str]:
    frequent, steps = more_often(plan), local_steps(plan, found)
    differ = sum(before != after for _, before, after in steps.values())
    claims = [
        better(plan, found, frequent, PLAIN),
        better(plan, found, SPLIT, frequent),
        cheaper(plan, found, PLAIN, frequent),
        Claim(
            "Every hospital does the same number of local steps in both",
            not differ,
            f"another number in {differ} of {len(steps)} hospitals: rounds take whole steps, at least one",
        ),
    ]
    return claims, markdown_table(
        ["hospital", "images", "local steps", "three times as often", "change"],
        [
            [name, f"{images:,}", f"{before:,}", f"{after:,}", f"{after / before - 1:+.0%}"]
            for name, (images, before, after) in steps.items()
        ],
    )


def _table(plan: Plan, found: Sequence[CellRun], rows: Sequence[Row], z: float) -> str:
    first, second = plan.metrics

    def runs(row: Row) -> list[CellRun]:
        return row.of(found, z)

    columns: Columns[Row] = (
        ("method", lambda row: row.name),
        *privacy(runs),
        ("v, last round", lambda row: distinct(runs(row), "intermediaries")),
        ("rounds", lambda row: distinct(runs(row), "rounds")),
        (METRIC_NAMES[first], lambda row: spread_test(runs(row), first)),
        (METRIC_NAMES[second], lambda row: spread_test(runs(row), second)),
        (f"paper: {METRIC_NAMES[first]}", lambda row: f"{row.paper(first, z):.3f}"),
        (METRIC_NAMES[second], lambda row: f"{row.paper(second, z):.3f}"),
    )
    return table(rows, columns)


def better(plan: Plan, found: Sequence[CellRun], row: Row, other: Row) -> Claim:
    """Claims that `row` has the higher headline metric than `other`, beside the paper's figures."""
    metric = plan.metrics[0]
    ours = gains((Pair(z, other.of(found, z), row.of(found, z)) for z in plan.noise), metric)
    paper = {f"z = {z:g}": row.paper(metric, z) - other.paper(metric, z) for z in plan.noise}
    return everywhere(f"{row.name} has a higher {METRIC_NAMES[metric]} than {other.name}", ours, paper)


def cheaper(plan: Plan, found: Sequence[CellRun], row: Row, other: Row) -> Claim:
    """Claims that `row` costs a hospital less ε than `other`."""
    ours, theirs = (
        {z: [one.epsilon("hospital") for one in which.of(found, z)] for z in plan.noise}
        for which in (row, other)
    )
    levels = [z for z in plan.noise if ours[z] and theirs[z]]
    return Claim(
        f"{row.name} costs a hospital less ε than {other.name}",
        all(max(ours[z]) < min(theirs[z]) for z in levels) if levels else None,
        "; ".join(f"{between(ours[z])} instead of {between(theirs[z])} at z = {z:g}" for z in levels),
    )


def observed(plan: Plan, found: Sequence[CellRun]) -> Claim:
    """Claims that ε with sampling also holds where an observer knows who took part."""
    spent = [one.summary["epsilon"] for z in plan.noise for one in DRAWN.of(found, z)]
    names = sorted({epsilon["accountant"] for epsilon in spent})
    return Claim(
        "ε with sampling holds though an observer may know who took part",
        not any(epsilon["amplified"] for epsilon in spent) if spent else None,
        f"from «{'», «'.join(names)}»" * bool(names),
    )


def local_steps(plan: Plan, found: Sequence[CellRun]) -> dict[str, tuple[int, int, int]]:
    """By hospital: images, and optimizer steps of a run as usual and with three times the aggregations."""
    from silodp.local.steps import planned_steps

    usual, count = plan.base.local, plan.base.rounds
    short = usual.model_copy(update={"epochs": usual.epochs / FACTOR})
    training = list(found[0].training_images.items())[: found[0].summary["members"]]
    return {
        name: (images, count * planned_steps(images, usual), FACTOR * count * planned_steps(images, short))
        for name, images in training
    }


def _picture(plan: Plan, found: Sequence[CellRun], rows: Sequence[Row], title: str) -> Picture:
    metric = plan.metrics[0]
    ours, paper = [], []
    for marker, row in zip("os^D", rows, strict=False):
        style, colour = marker + ("--" if row.variant else "-"), WITH if row.split else WITHOUT
        runs = {z: row.of(found, z) for z in plan.noise}
        ours.append(Line(points(runs, metric), style, colour, row.name))
        paper.append(Line([(z, row.paper(metric, z)) for z in plan.noise], style, colour, hollow=True))
    x = "noise multiplier z (more noise →)"
    panels = [
        Panel(x, score_label(plan), ours, title="these runs", ticks=plan.noise),
        Panel(x, "", paper, title="as the paper prints them", ticks=plan.noise),
    ]
    return Picture(panels, (9, 4.6), title, legends=2)


def _study(
    name: str,
    title: str,
    rows: Callable[[Plan], Sequence[Row]],
    conclude: Callable[[Plan, Sequence[CellRun]], tuple[list[Claim], str]],
    runs: int,
) -> Study:
    """A table of the appendix; `conclude` gives the claims and a note below them."""

    def cells(plan: Plan) -> list[Cell]:
        return [
            plan.cell(z, row.split, seed, variant=row.variant, changes=row.changes)
            for seed in plan.seeds
            for z in plan.noise
            for row in rows(plan)
        ]

    def results(plan: Plan, found: Sequence[CellRun]) -> Results:
        claims, note = conclude(plan, found)
        tables = [f"## z = {z:g}\n\n{_table(plan, found, rows(plan), z)}" for z in plan.noise]
        pictures = {plan.metrics[0]: _picture(plan, found, rows(plan), title)}
        return Results(title, found, [*tables, "## What it says"], claims, [note], pictures)

    return Study(name, f"Appendix: {title[0].lower()}{title[1:]}", "prostate", cells, results, runs)


SUBSAMPLING = _study(
    "appendix-subsampling",
    "Two thirds of the hospitals in each round",
    lambda plan: [PLAIN, DRAWN, SPLIT],
    subsampling,
    runs=9,
)
ROUNDS = _study(
    "appendix-rounds",
    "Three times as many rounds",
    lambda plan: [PLAIN, SPLIT, longer(plan, False), longer(plan, True)],
    rounds,
    runs=12,
)
FREQUENCY = _study(
    "appendix-frequency",
    "Three times as many aggregations of the same local work",
    lambda plan: [PLAIN, more_often(plan), SPLIT],
    frequency,
    runs=9,
)
