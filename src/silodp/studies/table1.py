"""Table 1: four server optimizers, with and without intermediaries, at three noise levels and without any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from silodp.studies.output import (
    WITH,
    WITHOUT,
    between,
    markdown_table,
    run_rows,
    select,
    show_printed,
    spread,
    write_csv,
    write_figure,
    write_markdown,
)
from silodp.studies.paper import METHODS, table1
from silodp.studies.study import Cell, Found, Plan, Study


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
    header = ["method", "z", "ε hospital: without", "with", "ε intermediary: with", "v"]
    header += [f"{metric}: without", "with", "gain", "paper: without", "with"]
    rows = []
    for optimizer, name in METHODS.items():
        for z in (0.0, *plan.noise):
            without, with_ = (
                select(found, method=name, z=z, intermediaries=word) for word in ("without", "with")
            )
            if not (without or with_):
                continue
            rows.append(
                [
                    name,
                    f"{z:g}" if z else "no privacy",
                    between([one.epsilon("hospital") for one in without]),
                    between([one.epsilon("hospital") for one in with_]),
                    between([one.epsilon("intermediary") for one in with_]),
                    ", ".join(sorted({str(one.summary["intermediaries"]) for one in with_})) or "–",
                    spread([one.test(metric) for one in without]),
                    spread([one.test(metric) for one in with_]),
                    f"{_gain(without, with_, metric):+.3f}" if without and with_ else "–",
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
            without, with_ = _pair(found, name, z)
            if without and with_:
                gains[name, z] = _gain(without, with_, plan.metrics[0])
    if not gains:
        return "No pair of runs with and without intermediaries."
    against = [f"{name} at z = {z:g} ({gain:+.3f})" for (name, z), gain in gains.items() if gain < 0]
    verdict = f"With intermediaries the {plan.metrics[0]} is"
    if not against:
        return f"{verdict} at least as good in all {len(gains)} pairs, as in the paper."
    return f"{verdict} worse in {len(against)} of {len(gains)} pairs: {'; '.join(against)}."


def _pair(found: Sequence[Found], name: str, z: float) -> tuple[list[Found], list[Found]]:
    here = select(found, method=name, z=z)
    return select(here, intermediaries="without"), select(here, intermediaries="with")


def _gain(without: Sequence[Found], with_: Sequence[Found], metric: str) -> float:
    return mean(one.test(metric) for one in with_) - mean(one.test(metric) for one in without)


def _picture(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    from matplotlib.figure import Figure

    metric = plan.metrics[0]
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, len(METHODS), sharey=True)
    for place, (optimizer, name) in zip(axes, METHODS.items(), strict=True):
        for word, colour in (("without", WITHOUT), ("with", WITH)):
            ours = {z: select(found, method=name, z=z, intermediaries=word) for z in plan.noise}
            levels = [z for z in plan.noise if ours[z]]
            means = [mean(one.test(metric) for one in ours[z]) for z in levels]
            place.plot(levels, means, "o-", color=colour, label=f"{word} intermediaries")
            paper = [table1(plan.task, optimizer, z, word == "with") for z in plan.noise]
            values = [cell[0] if cell else float("nan") for cell in paper]
            place.plot(
                plan.noise, values, "s:", color=colour, markerfacecolor="none", label=f"{word}, the paper"
            )
        if plain := select(found, method=name, z=0.0):
            level = mean(one.test(metric) for one in plain)
            place.axhline(level, color="#555555", linewidth=1, linestyle="--", label="no privacy")
        place.set(title=name, xlabel="noise multiplier z", xticks=plan.noise, ylim=(0, 1))
        place.grid(alpha=0.3)
    axes[0].set_ylabel(f"test {metric.upper() if metric == 'auc' else metric.title()} (higher is better)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    write_figure(out, "table1", figure)


PROSTATE = Study(
    "table1-prostate", "Table 1 on prostate segmentation: Dice and IoU", "prostate", cells, write
)
ICH = Study("table1-ich", "Table 1 on haemorrhage classification: AUC and accuracy", "ich", cells, write)
