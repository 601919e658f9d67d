"""What hospital-privacy writes: who trains how, the figures at each ε, what they say, and the picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from silodp.models.start import IN_WORDS
from silodp.runs.schema import ModelTest, StartRecord, or_nan
from silodp.studies.output import (
    METRIC_NAMES,
    between,
    distinct,
    mean_test,
    run_rows,
    select,
    signed,
    spread,
    write_figure,
    write_markdown,
)
from silodp.studies.study import Found, Plan
from silodp.studies.whole_hospital import RECIPE, same_generator
from silodp.tables import markdown_table, write_csv

SCRATCH, NARROW, SPLIT = "fedavg", "narrow", "split"


@dataclass(frozen=True)
class Method:
    """One line of the picture."""

    name: str
    colour: str
    style: str


METHODS = {
    RECIPE: Method("the recipe", "#0072B2", "o-"),
    SCRATCH: Method("DP-FedAvg, all from chance", "#D55E00", "s--"),
    NARROW: Method("DP-FedAvg, narrow network", "#009E73", "^-."),
    SPLIT: Method("DP-FedAvg with intermediaries", "#CC79A7", "D:"),
}
"""By the word in their runs' names; told apart without colours too."""


_THEORY = (
    "With everyone in every round, T rounds of agreeing updates move the model by T·C and their noise by "
    "√T·z·C·√d/N in norm: signal over noise is μ·N/√d, where ε and δ fix μ = √T/z. More rounds do not change "
    "it, nor does splitting at equal ε of a hospital; d, how many numbers train, does. Without noise nobody "
    "is clipped or split."
)


class StartFile(TypedDict):
    """start.json: the start, and what it scores untrained."""

    start: StartRecord
    test: ModelTest


def write_all(
    out: Path, plan: Plan, untrained: Found | None, start: StartFile | None, trained: Sequence[Found]
) -> None:
    """All files of the study.

    Args:
        untrained: the cell of the start, where it is among those that were asked for.
        start: what it found.
        trained: the other cells.
    """
    write_csv(out / "results.csv", _rows(untrained, start, trained))
    parts = [_methods(trained), _table(plan, start, trained), verdict(plan, start, trained), _THEORY]
    title = f"What a model is worth at each ε of a hospital, {plan.task}"
    write_markdown(out, title, plan, trained, [*parts, *same_generator(plan)], "methods as below")
    _picture(out, plan, start, trained)


def _rows(untrained: Found | None, start: StartFile | None, trained: Sequence[Found]) -> list[dict[str, Any]]:
    """A line a run; the start's says that no round was trained, and has nothing else of a run."""
    rows = run_rows(trained)
    if untrained is not None and start is not None:
        scores = {f"test_{name}": value for name, value in start["test"]["mean"].items()}
        own = {**untrained.cell.columns, "rounds": 0, "epsilon_hospital": 0.0, **scores}
        own["run"] = untrained.folder.name
        rows.insert(0, {key: own.get(key, "") for key in rows[0]})
    return rows


def _methods(trained: Sequence[Found]) -> str:
    """How each method trains."""
    header = ["method", "begins", "numbers that train", "v", "rounds", "local training", "C", "model"]
    rows = []
    for method, words in METHODS.items():
        if not (runs := select(trained, method=method)):
            continue
        experiment, start = runs[0].cell.experiment, runs[0].summary["start"]
        local, last = experiment.local, experiment.averaged_rounds
        rows.append(
            [
                words.name,
                f"{start['name']}: {IN_WORDS[start['origin']]}" if start else "by chance",
                _numbers(runs),
                distinct(runs, "intermediaries"),
                distinct(runs, "rounds"),
                f"{local.optimizer} at {local.learning_rate:g}, batches of {local.batch_size}",
                experiment.clipping.rule,
                f"mean of the last {last} round{'s' * (last > 1)}" if last else "last round's",
            ]
        )
    return markdown_table(header, rows)


def _numbers(runs: Sequence[Found]) -> str:
    return ", ".join(f"{count:,}" for count in sorted({one.summary["parameters"] for one in runs}))


def _asked(trained: Sequence[Found]) -> list[float]:
    return sorted({float(one.cell.columns["epsilon_asked"]) for one in trained})


def _table(plan: Plan, start: StartFile | None, trained: Sequence[Found]) -> str:
    metric = plan.metrics[0]
    shown = {method: words for method, words in METHODS.items() if select(trained, method=method)}
    header = ["ε hospital asked", "spent", *(f"{METRIC_NAMES[metric]}: {one.name}" for one in shown.values())]
    rows = []
    if start is not None:
        untrained = f"{or_nan(start['test']['mean'][metric]):.3f} (the start, untrained)"
        rows.append(["0", "0", *(untrained if method == RECIPE else "–" for method in shown)])
    for epsilon in _asked(trained):
        here = select(trained, epsilon_asked=epsilon)
        row = [f"{epsilon:g}" if epsilon < math.inf else "∞ (no noise)"]
        row.append(between([one.epsilon("hospital") for one in here]))
        for method in shown:
            runs = select(here, method=method)
            row.append(spread([one.test(metric) for one in runs]) if runs else "–")
        rows.append(row)
    return markdown_table(header, rows)


def verdict(plan: Plan, start: StartFile | None, trained: Sequence[Found]) -> str:
    """Whether training at an ε is better than none at all, and who is best, by the headline metric."""
    finite = [epsilon for epsilon in _asked(trained) if epsilon < math.inf]
    scores: dict[str, dict[float, float]] = {}
    for method in METHODS:
        by_level = {epsilon: select(trained, method=method, epsilon_asked=epsilon) for epsilon in finite}
        means = {epsilon: mean_test(runs, plan.metrics[0]) for epsilon, runs in by_level.items()}
        scores[method] = {epsilon: score for epsilon, score in means.items() if not math.isnan(score)}
    said = []
    if start is not None:
        untrained = or_nan(start["test"]["mean"][plan.metrics[0]])
        metric = METRIC_NAMES[plan.metrics[0]]
        said.append(f"The start, untrained, has a test {metric} of {untrained:.3f}; beside it:")
        said += [_beside(method, own, untrained) for method, own in scores.items() if own]
    best = []
    for epsilon in finite:
        here = {method: own[epsilon] for method, own in scores.items() if epsilon in own}
        if len(here) > 1:
            winner = max(here, key=lambda method: here[method])
            best.append(f"{METHODS[winner].name} at ε = {epsilon:g} ({here[winner]:.3f})")
    said += [f"The best of each level with several: {'; '.join(best)}."] if best else []
    return " ".join(said) or "No runs to compare."


def _beside(method: str, scores: Mapping[float, float], untrained: float) -> str:
    """Where a method is better than the start, and where it is not."""
    gains = {epsilon: score - untrained for epsilon, score in scores.items()}
    listed = [
        f"{word} at ε = {', '.join(own)}"
        for word, better in (("better", True), ("not better", False))
        if (
            own := [
                f"{epsilon:g} ({signed(gain)})" for epsilon, gain in gains.items() if (gain > 0) is better
            ]
        )
    ]
    return f"{METHODS[method].name}, {'; '.join(listed)}."


def _picture(out: Path, plan: Plan, start: StartFile | None, trained: Sequence[Found]) -> None:
    from matplotlib.figure import Figure

    metric = plan.metrics[0]
    finite = [epsilon for epsilon in _asked(trained) if epsilon < math.inf] or [1.0]
    places = {epsilon: math.log2(epsilon) for epsilon in finite}
    places |= {0.0: min(places.values()) - 1, math.inf: max(places.values()) + 1}
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.subplots()
    for method, words in METHODS.items():
        runs = {epsilon: select(trained, method=method, epsilon_asked=epsilon) for epsilon in places}
        points = {epsilon: mean_test(own, metric) for epsilon, own in sorted(runs.items()) if own}
        if method == RECIPE and start is not None:
            points = {0.0: or_nan(start["test"]["mean"][metric]), **points}
        if not points:
            continue
        inner = [epsilon for epsilon in points if 0 < epsilon < math.inf]
        label = f"{words.name}: {_numbers(select(trained, method=method))} numbers train"
        axes.plot(
            [places[one] for one in points], list(points.values()), ":", color=words.colour, linewidth=0.8
        )
        axes.plot(
            [places[one] for one in inner], [points[one] for one in inner], words.style, color=words.colour
        )
        axes.plot([places[one] for one in points], list(points.values()), words.style[0], color=words.colour)
        axes.plot([], [], words.style, color=words.colour, label=label)
        for epsilon, own in runs.items():
            if len(own) > 1:
                each = [one.test(metric) for one in own]
                axes.plot([places[epsilon]] * len(each), each, ".", color=words.colour, alpha=0.4)
    if start is not None:
        level = or_nan(start["test"]["mean"][metric])
        axes.axhline(level, color="#555555", linewidth=1, linestyle=(0, (6, 4)))
        axes.annotate(
            "the start, untrained", (0.99, level), (0, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", va="bottom", fontsize="small", color="#555555",
        )  # fmt: skip
    ticks = sorted(places)
    names = {0.0: "0\nnothing trained", math.inf: "∞\nno noise"}
    axes.set_xticks([places[one] for one in ticks], [names.get(one, f"{one:g}") for one in ticks])
    axes.set(xlabel="ε of a hospital (less is more private)", ylim=(0, 1))
    axes.set_ylabel(
        f"test {METRIC_NAMES[metric]} (higher is better{', a dot a seed' * (len(plan.seeds) > 1)})"
    )
    axes.set_title("Every point of a column protects a hospital equally well", loc="left", fontsize="medium")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    write_figure(out, "hospital-privacy", figure)
