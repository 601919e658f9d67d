"""Table 1: four server optimizers, with and without intermediaries, at three noise levels and without any."""

from __future__ import annotations

from collections.abc import Sequence

from silodp.studies.claims import everywhere
from silodp.studies.columns import METRIC_NAMES, PAIRED, Pair, mean_test, pairs, scored, select, table
from silodp.studies.output import Results
from silodp.studies.paper import METHODS, table1
from silodp.studies.pictures import WITH, WITHOUT, Level, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study

_OPTIMIZERS = {name: optimizer for optimizer, name in METHODS.items()}


def cells(plan: Plan) -> list[Cell]:
    return [
        plan.cell(z, split, seed, optimizer=optimizer)
        for seed in plan.seeds
        for optimizer in METHODS
        for z in (0.0, *plan.noise)
        for split in ((False, True) if z else (False,))
    ]


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    both = pairs(found, lambda one: (one.cell.columns["method"], one.cell.columns["z"]))
    metric = METRIC_NAMES[plan.metrics[0]]
    claims = [
        everywhere(f"{name}: the {metric} is higher with intermediaries", *_gains(plan, both, name))
        for name in METHODS.values()
    ]
    task = "prostate segmentation" if plan.task == "prostate" else "haemorrhage classification"
    tables = [_table(plan, both, place) for place in (0, 1)]
    return Results(f"Table 1, {task}", found, tables, claims, pictures={"table1": _picture(plan, found)})


def _table(plan: Plan, both: Sequence[Pair], place: int) -> str:
    """The table of the first or the second metric."""

    def printed(key: tuple[str, float], split: bool) -> Sequence[float] | None:
        name, z = key
        values = table1(plan.task, _OPTIMIZERS[name], z, split) if z or not split else None
        return values and values[2 * place : 2 * place + 2]

    columns = (
        ("method", lambda pair: pair.key[0]),
        ("z", lambda pair: f"{pair.key[1]:g}" if pair.key[1] else "no privacy"),
        *PAIRED,
        *scored(plan.metrics[place], printed),
    )
    return table(both, columns)


def _gains(plan: Plan, both: Sequence[Pair], name: str) -> tuple[dict[str, float], dict[str, float]]:
    """Gains of the headline metric at each z: ours and the paper's."""
    ours, paper = {}, {}
    for pair in both:
        z = pair.key[1]
        if pair.key[0] == name and pair.without and pair.with_:
            ours[f"z = {z:g}"] = pair.gain(plan.metrics[0])
            without, with_ = (table1(plan.task, _OPTIMIZERS[name], z, split) for split in (False, True))
            if without and with_:
                paper[f"z = {z:g}"] = with_[0] - without[0]
    return ours, paper


def _picture(plan: Plan, found: Sequence[CellRun]) -> Picture:
    metric = plan.metrics[0]
    panels: list[Panel] = []
    seeds = ", a dot a seed" * (len(plan.seeds) > 1)
    for optimizer, name in METHODS.items():
        lines = []
        for word, colour in (("without", WITHOUT), ("with", WITH)):
            runs = {z: select(found, method=name, z=z, intermediaries=word) for z in plan.noise}
            ours = {z: mean_test(own, metric) for z, own in runs.items() if own}
            paper = {z: table1(plan.task, optimizer, z, word == "with") for z in plan.noise}
            known = {z: values[0] for z, values in paper.items() if values}
            lines += [
                Line(ours.items(), "o-", colour, f"{word} intermediaries"),
                Line(known.items(), "s:", colour, f"{word}, the paper", hollow=True),
            ]
            if seeds:
                each = [(z, one.test(metric)) for z in ours for one in runs[z]]
                lines.append(Line(each, ".", colour, faint=True))
        plain = select(found, method=name, z=0.0)
        panels.append(
            Panel(
                "noise multiplier z",
                "" if panels else f"test {METRIC_NAMES[metric]} (higher is better{seeds})",
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
