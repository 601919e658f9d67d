"""Table 1: four server optimizers, with and without intermediaries, at three noise levels and without any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from silodp.studies.output import (
    METRIC_NAMES,
    PAIRED,
    WITH,
    WITHOUT,
    mean_test,
    pair,
    paired_privacy,
    run_rows,
    select,
    show_printed,
    signed,
    spread,
    write_figure,
    write_markdown,
)
from silodp.studies.paper import METHODS, table1
from silodp.studies.study import Cell, Found, Plan, Study
from silodp.tables import markdown_table, write_csv


def cells(plan: Plan) -> list[Cell]:
    return [
        plan.cell(z, split, seed, optimizer=optimizer)
        for seed in plan.seeds
        for optimizer in METHODS
        for z in (0.0, *plan.noise)
        for split in ((False, True) if z else (False,))
    ]


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    write_csv(out / "results.csv", run_rows(found))
    tables = [_table(plan, found, place, metric) for place, metric in enumerate(plan.metrics)]
    title = f"Table 1, {'prostate segmentation' if plan.task == 'prostate' else 'haemorrhage classification'}"
    write_markdown(out, title, plan, found, [*tables, direction(plan, found)])
    _picture(out, plan, found)


def _table(plan: Plan, found: Sequence[Found], place: int, metric: str) -> str:
    header = ["method", "z", *PAIRED]
    header += [f"{METRIC_NAMES[metric]}: without", "with", "gain", "paper: without", "with"]
    rows = []
    for optimizer, name in METHODS.items():
        for z in (0.0, *plan.noise):
            without, with_ = pair(found, method=name, z=z)
            if not (without or with_):
                continue
            rows.append(
                [
                    name,
                    f"{z:g}" if z else "no privacy",
                    *paired_privacy(without, with_),
                    spread([one.test(metric) for one in without]),
                    spread([one.test(metric) for one in with_]),
                    signed(_gain(without, with_, metric)),
                    show_printed(table1(plan.task, optimizer, z, False), 2 * place),
                    show_printed(table1(plan.task, optimizer, z, True), 2 * place) if z else "–",
                ]
            )
    return markdown_table(header, rows)


def direction(plan: Plan, found: Sequence[Found]) -> str:
    """In which cells intermediaries do not help, by the headline metric."""
    gains = {}
    for name in METHODS.values():
        for z in plan.noise:
            without, with_ = pair(found, method=name, z=z)
            if without and with_:
                gains[f"{name} at z = {z:g}"] = _gain(without, with_, plan.metrics[0])
    if not gains:
        return "No pair of runs with and without intermediaries."
    undefined = [where for where, gain in gains.items() if math.isnan(gain)]
    against = [f"{where} ({signed(gain)})" for where, gain in gains.items() if gain < 0]
    count, metric = len(gains) - len(undefined), METRIC_NAMES[plan.metrics[0]]
    if against:
        said = f"With intermediaries the {metric} is worse in {len(against)} of {count} pairs: "
        said += f"{'; '.join(against)}."
    elif count:
        where = f"all {count} pairs" if count > 1 else "the one pair"
        said = f"With intermediaries the {metric} is at least as good in {where}, as in the paper."
    else:
        said = "No pair of runs can be compared."
    return said + (f" The {metric} is undefined for {'; '.join(undefined)}." if undefined else "")


def _gain(without: Sequence[Found], with_: Sequence[Found], metric: str) -> float:
    return mean_test(with_, metric) - mean_test(without, metric)


def _picture(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    from matplotlib.figure import Figure

    metric = plan.metrics[0]
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, len(METHODS), sharey=True)
    for place, (optimizer, name) in zip(axes, METHODS.items(), strict=True):
        for word, colour in (("without", WITHOUT), ("with", WITH)):
            ours = {z: select(found, method=name, z=z, intermediaries=word) for z in plan.noise}
            levels = [z for z in plan.noise if ours[z]]
            means = [mean_test(ours[z], metric) for z in levels]
            place.plot(levels, means, "o-", color=colour, label=f"{word} intermediaries")
            if len(plan.seeds) > 1:
                for z in levels:
                    each = [one.test(metric) for one in ours[z]]
                    place.plot([z] * len(each), each, ".", color=colour, alpha=0.5)
            paper = [table1(plan.task, optimizer, z, word == "with") for z in plan.noise]
            values = [cell[0] if cell else float("nan") for cell in paper]
            place.plot(
                plan.noise, values, "s:", color=colour, markerfacecolor="none", label=f"{word}, the paper"
            )
        if plain := select(found, method=name, z=0.0):
            level = mean_test(plain, metric)
            place.axhline(level, color="#555555", linewidth=1, linestyle="--", label="no privacy")
        place.set(title=name, xlabel="noise multiplier z", xticks=plan.noise, ylim=(0, 1))
        place.grid(alpha=0.3)
    seeds = ", a dot a seed" * (len(plan.seeds) > 1)
    axes[0].set_ylabel(f"test {METRIC_NAMES[metric]} (higher is better{seeds})")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    write_figure(out, "table1", figure)


PROSTATE = Study(
    "table1-prostate", "Table 1 on prostate segmentation: Dice and IoU", "prostate", cells, write, runs=28
)
ICH = Study(
    "table1-ich", "Table 1 on haemorrhage classification: AUC and accuracy", "ich", cells, write, runs=28
)
