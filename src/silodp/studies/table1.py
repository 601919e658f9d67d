"""Table 1: four server optimizers, with and without intermediaries, at three noise levels and without any."""

from __future__ import annotations

from collections.abc import Sequence

from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import (
    METRIC_NAMES,
    PAIRED,
    Pair,
    gains,
    mean_test,
    pairs,
    points,
    score_label,
    scored,
    select,
    table,
)
from silodp.studies.output import Results
from silodp.studies.paper import METHODS, table1
from silodp.studies.pictures import WITH, WITHOUT, Level, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study


def cells(plan: Plan) -> list[Cell]:
    return [
        plan.cell(z, split, seed, optimizer=optimizer)
        for seed in plan.seeds
        for optimizer in METHODS
        for z, split in plan.ways
    ]


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    both = pairs(found, lambda one: (one.cell.experiment.server.optimizer, one.cell.columns["z"]))
    task = "prostate segmentation" if plan.task == "prostate" else "haemorrhage classification"
    return Results(
        f"Table 1, {task}",
        found,
        [_table(plan, both, metric) for metric in plan.metrics],
        [_claim(plan, found, optimizer) for optimizer in METHODS],
        pictures={"table1": _picture(plan, found)},
    )


def _table(plan: Plan, both: Sequence[Pair], metric: str) -> str:
    def printed(key: tuple[str, float], split: bool) -> Sequence[float]:
        optimizer, z = key
        return table1(plan.task, optimizer, z, split)[metric] if z or not split else ()

    columns = (
        ("method", lambda pair: METHODS[pair.key[0]]),
        ("z", lambda pair: f"{pair.key[1]:g}" if pair.key[1] else "no privacy"),
        *PAIRED,
        *scored(metric, printed),
    )
    return table(both, columns)


def _paper(plan: Plan, optimizer: str, split: bool) -> dict[float, float]:
    """The paper's headline metric at each z."""
    return {z: table1(plan.task, optimizer, z, split)[plan.metrics[0]][0] for z in plan.noise}


def _claim(plan: Plan, found: Sequence[CellRun], optimizer: str) -> Claim:
    name, metric = METHODS[optimizer], plan.metrics[0]
    both = pairs(select(found, method=name), lambda one: one.cell.columns["z"])
    without, with_ = (_paper(plan, optimizer, split) for split in (False, True))
    return everywhere(
        f"{name}: the {METRIC_NAMES[metric]} is higher with intermediaries",
        gains(both, metric),
        {f"z = {z:g}": with_[z] - without[z] for z in plan.noise},
    )


def _picture(plan: Plan, found: Sequence[CellRun]) -> Picture:
    metric = plan.metrics[0]
    panels: list[Panel] = []
    for optimizer, name in METHODS.items():
        lines = []
        for word, colour in (("without", WITHOUT), ("with", WITH)):
            runs = {z: select(found, method=name, z=z, intermediaries=word) for z in plan.noise}
            paper = _paper(plan, optimizer, word == "with").items()
            lines += [
                Line(points(runs, metric), "o-", colour, f"{word} intermediaries"),
                Line(paper, "s:", colour, f"{word}, the paper", hollow=True),
            ]
        plain = select(found, method=name, z=0.0)
        panels.append(
            Panel(
                "noise multiplier z",
                "" if panels else score_label(plan),
                lines,
                [Level(mean_test(plain, metric), "no privacy")] if plain else [],
                title=name,
                ticks=plan.noise,
            )
        )
    return Picture(panels, (12, 3.8), legends=5)


PROSTATE = Study(
    "table1-prostate", "Table 1 on prostate segmentation: Dice and IoU", "prostate", cells, results, runs=28
)
ICH = Study(
    "table1-ich", "Table 1 on haemorrhage classification: AUC and accuracy", "ich", cells, results, runs=28
)
