"""Three tables of the appendix: hospitals that are drawn, more rounds, more aggregations.

Each has a row a way of training with DP-FedAvg, at each noise level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import (
    METRIC_NAMES,
    Columns,
    between,
    distinct,
    mean_test,
    privacy,
    select,
    show_printed,
    spread_test,
    table,
)
from silodp.studies.output import Results
from silodp.studies.paper import appendix, table1
from silodp.studies.pictures import WITH, WITHOUT, Line, Panel, Picture
from silodp.studies.study import Cell, Found, Plan, Study
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


PLAIN, SPLIT = Row("DP-FedAvg", False), Row("DP-FedAvg + intermediaries", True)
"""Two cells of table 1, which every table repeats."""

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


def often(plan: Plan) -> Row:
    changes = {"rounds": FACTOR * plan.base.rounds, "local.epochs": plan.base.local.epochs / FACTOR}
    printed = ("communication_x3", "DP-FedAvg")
    return Row("DP-FedAvg, three times as often", False, "often", changes, printed)


def subsampling_rows(_: Plan) -> list[Row]:
    return [PLAIN, DRAWN, SPLIT]


def rounds_rows(plan: Plan) -> list[Row]:
    return [PLAIN, SPLIT, longer(plan, False), longer(plan, True)]


def frequency_rows(plan: Plan) -> list[Row]:
    return [PLAIN, often(plan), SPLIT]


def cells_of(plan: Plan, rows: Sequence[Row]) -> list[Cell]:
    return [
        plan.cell(z, row.split, seed, variant=row.variant, changes=row.changes)
        for seed in plan.seeds
        for z in plan.noise
        for row in rows
    ]


def subsampling(plan: Plan, found: Sequence[Found]) -> Results:
    claims = [
        better(plan, found, PLAIN, DRAWN),
        better(plan, found, SPLIT, DRAWN),
        cheaper(plan, found, DRAWN, PLAIN),
        observed(plan, found),
    ]
    note = "The paper prints no ε with sampling. A round's mean is of fewer hospitals: its noise is larger."
    return _results(plan, found, subsampling_rows(plan), _SUBSAMPLING, claims, [note])


def rounds(plan: Plan, found: Sequence[Found]) -> Results:
    plain, split, long, long_split = rows = rounds_rows(plan)
    claims = [
        better(plan, found, long, plain),
        better(plan, found, long_split, split),
        better(plan, found, long_split, long),
        cheaper(plan, found, plain, long),
        cheaper(plan, found, split, long_split),
    ]
    note = (
        f"The paper's rounds are 100 and 300, here {plan.base.rounds} and {FACTOR * plan.base.rounds}; "
        "it prints no ε for the longer runs."
    )
    return _results(plan, found, rows, _ROUNDS, claims, [note])


def frequency(plan: Plan, found: Sequence[Found]) -> Results:
    plain, often_, split = rows = frequency_rows(plan)
    steps = local_steps(plan, found)
    differ = sum(before != after for _, before, after in steps.values())
    claims = [
        better(plan, found, often_, plain),
        better(plan, found, split, often_),
        cheaper(plan, found, plain, often_),
        Claim(
            "Every hospital does the same number of local steps in both",
            not differ,
            f"another one in {differ} of {len(steps)} hospitals: rounds take whole steps, at least one",
        ),
    ]
    work = markdown_table(
        ["hospital", "images", "local steps", "three times as often", "change"],
        [
            [name, f"{images:,}", f"{before:,}", f"{after:,}", f"{after / before - 1:+.0%}"]
            for name, (images, before, after) in steps.items()
        ],
    )
    return _results(plan, found, rows, _FREQUENCY, claims, [work])


def _results(
    plan: Plan,
    found: Sequence[Found],
    rows: Sequence[Row],
    title: str,
    claims: Sequence[Claim],
    notes: Sequence[str],
) -> Results:
    """A table for each noise level, the claims, and a picture of the headline metric."""
    tables = [f"## z = {z:g}\n\n{_table(plan, found, rows, z)}" for z in plan.noise]
    pictures = {plan.metrics[0]: _picture(plan, found, rows, title)}
    return Results(title, found, [*tables, "## What it says"], claims, notes, pictures)


def _table(plan: Plan, found: Sequence[Found], rows: Sequence[Row], z: float) -> str:
    first, second = plan.metrics

    def runs(row: Row) -> list[Found]:
        return row.of(found, z)

    columns: Columns[Row] = (
        ("method", lambda row: row.name),
        *privacy(runs),
        ("v, last round", lambda row: distinct(runs(row), "intermediaries")),
        ("rounds", lambda row: distinct(runs(row), "rounds")),
        (METRIC_NAMES[first], lambda row: spread_test(runs(row), first)),
        (METRIC_NAMES[second], lambda row: spread_test(runs(row), second)),
        (f"paper: {METRIC_NAMES[first]}", lambda row: show_printed((row.paper(z) or ())[:1])),
        (METRIC_NAMES[second], lambda row: show_printed((row.paper(z) or ())[1:])),
    )
    return table(rows, columns)


def better(plan: Plan, found: Sequence[Found], row: Row, other: Row) -> Claim:
    """Whether `row` has the better headline metric, beside the paper's figures."""
    metric = plan.metrics[0]
    ours, paper = {}, {}
    for z in plan.noise:
        mine, theirs, printed, its = row.of(found, z), other.of(found, z), row.paper(z), other.paper(z)
        if mine and theirs:
            ours[f"z = {z:g}"] = mean_test(mine, metric) - mean_test(theirs, metric)
        if printed and its:
            paper[f"z = {z:g}"] = printed[0] - its[0]
    return everywhere(f"{row.name} has a higher {METRIC_NAMES[metric]} than {other.name}", ours, paper)


def cheaper(plan: Plan, found: Sequence[Found], row: Row, other: Row) -> Claim:
    """Whether `row` costs a hospital less."""
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


def observed(plan: Plan, found: Sequence[Found]) -> Claim:
    """On what ε with sampling counts."""
    spent = [one.summary["epsilon"] for z in plan.noise for one in DRAWN.of(found, z)]
    names = sorted({epsilon["accountant"] for epsilon in spent})
    return Claim(
        "ε with sampling holds though an observer may know who took part",
        not any(epsilon["amplified"] for epsilon in spent) if spent else None,
        f"from «{'», «'.join(names)}»" * bool(names),
    )


def local_steps(plan: Plan, found: Sequence[Found]) -> dict[str, tuple[int, int, int]]:
    """Images of each hospital, and its optimizer steps over a run: as usual, and three times as often."""
    from silodp.local.steps import planned_steps

    usual, count = plan.base.local, plan.base.rounds
    short = usual.model_copy(update={"epochs": usual.epochs / FACTOR})
    training = list(found[0].training_images.items())[: found[0].summary["members"]]
    return {
        name: (images, count * planned_steps(images, usual), FACTOR * count * planned_steps(images, short))
        for name, images in training
    }


def _picture(plan: Plan, found: Sequence[Found], rows: Sequence[Row], title: str) -> Picture:
    metric = plan.metrics[0]
    ours, paper = [], []
    for marker, row in zip("os^D", rows, strict=False):
        style, colour = marker + ("--" if row.variant else "-"), WITH if row.split else WITHOUT
        means = {z: mean_test(runs, metric) for z in plan.noise if (runs := row.of(found, z))}
        known = {z: values[0] for z in plan.noise if (values := row.paper(z))}
        ours.append(Line(means.items(), style, colour, row.name))
        paper.append(Line(known.items(), style, colour, hollow=True))
    x, y = "noise multiplier z (more noise →)", f"test {METRIC_NAMES[metric]} (higher is better)"
    panels = [
        Panel(x, y, ours, title="these runs", ticks=plan.noise),
        Panel(x, "", paper, title="as the paper prints them", ticks=plan.noise),
    ]
    return Picture(panels, (9, 4.6), title, legends=2)


_SUBSAMPLING = "Two thirds of the hospitals in each round"
_ROUNDS = "Three times as many rounds"
_FREQUENCY = "Three times as many aggregations of the same local work"

SUBSAMPLING = Study(
    "appendix-subsampling",
    "Appendix: two thirds of the hospitals in each round",
    "prostate",
    lambda plan: cells_of(plan, subsampling_rows(plan)),
    subsampling,
    runs=9,
)
ROUNDS = Study(
    "appendix-rounds",
    "Appendix: three times as many rounds",
    "prostate",
    lambda plan: cells_of(plan, rounds_rows(plan)),
    rounds,
    runs=12,
)
FREQUENCY = Study(
    "appendix-frequency",
    "Appendix: three times as many aggregations of the same local work",
    "prostate",
    lambda plan: cells_of(plan, frequency_rows(plan)),
    frequency,
    runs=9,
)
