"""Test metric at each ε of a hospital: the recipe for whole hospitals beside training from random weights.

Every method has the same ε of a hospital at each level, since the budget sets the noise; a hospital of v
intermediaries gets z = v·z_h. At ε = 0 nothing is trained: the start itself is tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.models.start import IN_WORDS
from silodp.runs.schema import or_nan
from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import (
    METRIC_NAMES,
    Columns,
    distinct,
    epsilon,
    group_by,
    mean_test,
    points,
    score_label,
    select,
    spread_test,
    table,
)
from silodp.studies.matched_privacy import split_counts
from silodp.studies.output import Results, run_rows
from silodp.studies.pictures import BLUE, GREEN, ORANGE, PINK, Level, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study, read_product
from silodp.studies.whole_hospital import (
    ICH_BASES,
    PROSTATE_BASES,
    RECIPE,
    START_PRODUCT,
    StartFile,
    cell_at,
    same_generator,
    score_start,
)
from silodp.tables import markdown_table

START = "recipe-start"  # so that --only recipe includes it
LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_FEATURES = {"prostate": 2, "ich": 4}  # of the narrow network
SCRATCH, NARROW, SPLIT = "fedavg", "narrow", "split"


@dataclass(frozen=True)
class Method:
    """A line of the figure."""

    name: str
    colour: str
    style: str


METHODS = {
    RECIPE: Method("the recipe", BLUE, "o-"),
    SCRATCH: Method("DP-FedAvg, all from random weights", ORANGE, "s--"),
    NARROW: Method("DP-FedAvg, narrow network", GREEN, "^-."),
    SPLIT: Method("DP-FedAvg with intermediaries", PINK, "D:"),
}
"""By the word in the names of their runs; distinguishable without colours, too."""

_THEORY = (
    "With everyone in every round, T rounds of agreeing updates move the model by T·C and their noise by "
    "√T·z·C·√d/N in norm: signal over noise is μ·N/√d, where ε and δ fix μ = √T/z. Neither more rounds nor "
    "splitting at equal ε of a hospital changes it; d, the number of trained parameters, does. Without noise "
    "there is no clipping and no splitting."
)


def cells(plan: Plan) -> list[Cell]:
    scratch = _from_scratch(plan)
    whole = replace(plan, base=cell_at(plan, SCRATCH, math.inf, 0, scratch).experiment)
    narrow = {**scratch, "model.features": _FEATURES[plan.task]}
    splits = {}
    if whole.most_intermediaries > 1:
        splits = {epsilon: _split_count(plan, whole, epsilon, scratch) for epsilon in levels(plan, SPLIT)}
    found = []
    for seed in plan.seeds:
        found += [
            cell_at(plan, method, epsilon, seed, changes)
            for method, changes in ((RECIPE, {}), (SCRATCH, scratch), (NARROW, narrow))
            for epsilon in levels(plan, method)
        ]
        found += [
            cell_at(plan, SPLIT, epsilon, seed, {**scratch, "intermediaries.count": v})
            for epsilon, v in splits.items()
        ]
    plain = cell_at(plan, START, math.inf, plan.seeds[0], work=score_start, product=START_PRODUCT)
    return [replace(plain, columns={**plain.columns, "method": RECIPE, "epsilon_asked": 0.0}), *found]


def levels(plan: Plan, method: str) -> tuple[float, ...]:
    """ε of a method's runs; at small scale only the recipe has all, to finish in half an hour."""
    few = {"smoke": (8.0,), "small": (1.0, 8.0, 16.0), "paper": LEVELS}[plan.scale]
    finite = LEVELS if method == RECIPE and plan.scale == "small" else few
    return finite if method == SPLIT else (*finite, math.inf)  # without noise nobody is split


def _split_count(plan: Plan, whole: Plan, epsilon: float, changes: dict[str, Any]) -> int:
    """v by the closed form at the hospital's z, up to what the smallest hospital allows."""
    unsplit = cell_at(plan, SCRATCH, epsilon, 0, changes).experiment
    z_h = unsplit.resolve(len(whole.training_sizes), 1).privacy.noise_multiplier
    return split_counts(whole, z_h)[-1]


def _from_scratch(plan: Plan) -> dict[str, Any]:
    """Settings that train all parameters of the same network from random weights, as the preset does."""
    small = {"prostate": ("demo", "prostatex"), "ich": ("ich-small", "head-ct")}[plan.task]
    preset = f"{plan.task}-paper" if plan.scale == "paper" else small[plan.base.cohort.files is not None]
    usual = Experiment.load(preset)
    changes: dict[str, Any] = {
        "model.start": None,
        "model.trainable": "all",
        "server.average": 0.0,
        "clipping.rule": "quantile",
        "clipping.bound": usual.clipping.first_bound() or 1.0,
        "rounds": plan.base.rounds if plan.scale == "smoke" else usual.rounds,
        "local": usual.local.model_dump(exclude_unset=True),
    }
    typed = {key: value for key, value in plan.changes.items() if key == "rounds" or _fits(usual, key)}
    return changes | typed


def _fits(usual: Experiment, key: str) -> bool:
    section, _, setting = key.partition(".")
    return section == "local" and setting in type(usual.local).model_fields


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    untrained = next((one for one in found if one.cell.product == START_PRODUCT), None)
    trained = [one for one in found if one.cell.product != START_PRODUCT]
    if not trained:
        raise InputError(f"--only {plan.only}: the start alone is not a study; include more runs")
    start = read_product(StartFile, untrained.folder / START_PRODUCT) if untrained else None
    level = or_nan(start["test"]["mean"][plan.metrics[0]]) if start else None
    rows = run_rows(trained)
    if untrained is not None and start is not None:  # no round was trained, so most columns are empty
        scores = {f"test_{name}": value for name, value in start["test"]["mean"].items()}
        own = {**untrained.cell.columns, "rounds": 0, "epsilon_hospital": 0.0, **scores}
        own["run"] = untrained.folder.name
        rows.insert(0, {key: own.get(key, "") for key in rows[0]})
    return Results(
        f"What a model is worth at each ε of a hospital, {plan.task}",
        trained,
        [_methods(trained), _table(plan, level, trained)],
        claims(plan, level, trained),
        [_THEORY, *same_generator(plan)],
        {"hospital-privacy": _picture(plan, level, trained)},
        {"results.csv": rows},
        training="methods as below",
    )


def _methods(trained: Sequence[CellRun]) -> str:
    """The table of how each method trains."""

    def begins(runs: list[CellRun]) -> str:
        start = runs[0].summary["start"]
        return f"{start['name']}: {IN_WORDS[start['origin']]}" if start else "random weights"

    def local(runs: list[CellRun]) -> str:
        own = runs[0].cell.experiment.local
        return f"{own.optimizer} at {own.learning_rate:g}, batches of {own.batch_size}"

    def model(runs: list[CellRun]) -> str:
        last = runs[0].cell.experiment.averaged_rounds
        return f"mean of the last {last} round{'s' * (last > 1)}" if last else "last round's"

    columns: Columns[list[CellRun]] = (
        ("method", lambda runs: METHODS[str(runs[0].cell.columns["method"])].name),
        ("begins", begins),
        ("trained parameters", lambda runs: distinct(runs, "parameters")),
        ("v", lambda runs: distinct(runs, "intermediaries")),
        ("rounds", lambda runs: distinct(runs, "rounds")),
        ("local training", local),
        ("C", lambda runs: runs[0].cell.experiment.clipping.rule),
        ("model", model),
    )
    return table([runs for method in METHODS if (runs := select(trained, method=method))], columns)


def _asked(one: CellRun) -> float:
    return float(one.cell.columns["epsilon_asked"])


def _by_level(trained: Sequence[CellRun], method: str) -> dict[float, list[CellRun]]:
    """The runs of a method by the ε that was asked for, in ascending order."""
    return dict(sorted(group_by(select(trained, method=method), _asked).items()))


def _table(plan: Plan, start: float | None, trained: Sequence[CellRun]) -> str:
    metric = plan.metrics[0]
    shown = {method: words for method, words in METHODS.items() if select(trained, method=method)}
    header = ["ε hospital asked", "spent", *(f"{METRIC_NAMES[metric]}: {one.name}" for one in shown.values())]
    rows = []
    if start is not None:
        untrained = f"{start:.3f} (the start, untrained)"
        rows.append(["0", "0", *(untrained if method == RECIPE else "–" for method in shown)])
    for asked, here in sorted(group_by(trained, _asked).items()):
        rows.append(
            [
                f"{asked:g}" if asked < math.inf else "∞ (no noise)",
                epsilon(here, "hospital"),
                *(spread_test(select(here, method=method), metric) for method in shown),
            ]
        )
    return markdown_table(header, rows)


def claims(plan: Plan, start: float | None, trained: Sequence[CellRun]) -> list[Claim]:
    """Claims that training at an ε is better than no training, and that the recipe is best."""
    found, metric = [], plan.metrics[0]
    levels: dict[float, dict[str, float]] = {}
    for method, words in METHODS.items():
        runs = _by_level(trained, method)
        means = {asked: mean_test(own, metric) for asked, own in runs.items() if asked < math.inf}
        if means and start is not None:
            gains = {f"ε = {asked:g}": value - start for asked, value in means.items()}
            found.append(everywhere(f"{words.name}: better than the start, untrained", gains))
        for asked, value in means.items():
            if not math.isnan(value):
                levels.setdefault(asked, {})[method] = value
    best = {asked: max(own, key=lambda one: own[one]) for asked, own in levels.items() if len(own) > 1}
    shown = [
        f"{METHODS[one].name} at ε = {asked:g} ({levels[asked][one]:.3f})" for asked, one in best.items()
    ]
    holds = all(one == RECIPE for one in best.values()) if best else None
    return [*found, Claim("The recipe is the best at each ε with several methods", holds, "; ".join(shown))]


def _picture(plan: Plan, start: float | None, trained: Sequence[CellRun]) -> Picture:
    metric = plan.metrics[0]
    finite = [asked for asked in group_by(trained, _asked) if asked < math.inf] or [1.0]
    places = {asked: math.log2(asked) for asked in finite}
    places |= {0.0: min(places.values()) - 1, math.inf: max(places.values()) + 1}
    lines = []
    for method, words in METHODS.items():
        runs = _by_level(trained, method)
        if not runs:
            continue
        label = f"{words.name}: {distinct(select(trained, method=method), 'parameters')} parameters train"
        every = [(places[asked], value) for asked, value in points(runs, metric)]
        if method == RECIPE and start is not None:
            every.insert(0, (places[0.0], start))
        inner = [(places[asked], mean_test(own, metric)) for asked, own in runs.items() if asked < math.inf]
        lines += [
            Line(every, f"{words.style[0]}:", words.colour),
            Line(inner, words.style, words.colour, label),
        ]
    names = {0.0: "0\nnothing trained", math.inf: "∞\nno noise"}
    panel = Panel(
        "ε of a hospital (less is more private)",
        score_label(plan),
        lines,
        [Level(start, "the start, untrained")] if start is not None else [],
        title="Every point of a column protects a hospital equally well",
        ticks={place: names.get(asked, f"{asked:g}") for asked, place in places.items()},
    )
    return Picture([panel], (8.5, 5), legends=2)


_TITLE = "What a model is worth at each ε of a hospital"
PROSTATE = Study(
    "hospital-privacy-prostate", f"{_TITLE}: prostate, Dice (not in the paper)", "prostate", cells, results,
    runs=19, bases=PROSTATE_BASES,
)  # fmt: skip
ICH = Study(
    "hospital-privacy-ich", f"{_TITLE}: haemorrhage, AUC (not in the paper)", "ich", cells, results,
    runs=19, bases=ICH_BASES,
)  # fmt: skip
