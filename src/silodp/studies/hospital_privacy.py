"""What a model is worth at each ε of a hospital: the recipe for whole hospitals beside training from chance.

Every method has the same ε of a hospital at each level, since the budget sets the noise; a hospital of v
intermediaries gets z = v·z_h. At ε = 0 nothing is trained: the start itself is tested, as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.files import private_folder, to_json, write_atomically
from silodp.runs.threads import threads
from silodp.studies.hospital_privacy_output import NARROW, SCRATCH, SPLIT, StartFile, write_all
from silodp.studies.matched_privacy import split_counts
from silodp.studies.study import Cell, Found, Plan, Study, read_product
from silodp.studies.whole_hospital import ICH_BASES, PROSTATE_BASES, RECIPE, run

START = "recipe-start"  # in its name, so that --only recipe takes it along
PRODUCT = "start.json"
LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_FEATURES = {"prostate": 2, "ich": 4}  # of the narrow network


def cells(plan: Plan) -> list[Cell]:
    scratch = _from_chance(plan)
    whole = replace(plan, base=run(plan, SCRATCH, math.inf, 0, scratch).experiment)
    changes: dict[str, dict[str, Any]] = {
        RECIPE: {},
        SCRATCH: scratch,
        NARROW: {**scratch, "model.features": _FEATURES[plan.task]},
    }
    if whole.most_intermediaries > 1:
        changes[SPLIT] = scratch
    counts = {
        epsilon: {"intermediaries.count": _split_count(plan, whole, epsilon, scratch)}
        for epsilon in levels(plan, SPLIT)
        if SPLIT in changes
    }
    found = [
        run(plan, method, epsilon, seed, {**own, **(counts[epsilon] if method == SPLIT else {})})
        for seed in plan.seeds
        for method, own in changes.items()
        for epsilon in levels(plan, method)
    ]
    plain = run(plan, START, math.inf, plan.seeds[0], work=score_start, product=PRODUCT)
    return [replace(plain, columns={**plain.columns, "method": RECIPE, "epsilon_asked": 0.0}), *found]


def levels(plan: Plan, method: str) -> tuple[float, ...]:
    """ε of a method's runs; at small scale, to end in half an hour, only the recipe has all."""
    few = {"smoke": (8.0,), "small": (1.0, 8.0, 16.0), "paper": LEVELS}[plan.scale]
    finite = LEVELS if method == RECIPE and plan.scale == "small" else few
    return finite if method == SPLIT else (*finite, math.inf)  # without noise nobody is split


def _split_count(plan: Plan, whole: Plan, epsilon: float, changes: dict[str, Any]) -> int:
    """v by the closed form at the hospital's own z, as far as the smallest hospital allows."""
    unsplit = run(plan, SCRATCH, epsilon, 0, changes).experiment
    z_h = unsplit.resolve(len(whole.training_sizes), 1).privacy.noise_multiplier
    return split_counts(whole, z_h)[-1]


def _from_chance(plan: Plan) -> dict[str, Any]:
    """All parameters of the same network from chance, trained as the preset for such images says."""
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


def score_start(experiment: Experiment, folder: Path, device: str) -> None:
    """Tests the network as it is before round one; nothing is trained, and no run is made."""
    from silodp.runs.build import build
    from silodp.runs.record import start_record, test_record

    with threads(experiment.threads):
        parts = build(experiment, device=device)
        batch = parts.experiment.evaluation.batch if parts.mixes_images() else "any"
        scores = parts.engine.evaluate(parts.first_state().model, "test", thorough=True)
    start = start_record(parts.experiment)
    if start is None:
        raise InputError("model.start: there is none to test; give one")
    content: StartFile = {"start": start, "test": test_record(0, scores, batch, None)}
    private_folder(folder)
    write_atomically(folder / PRODUCT, to_json(content).encode())


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    untrained = next((one for one in found if one.cell.product == PRODUCT), None)
    trained = [one for one in found if one.cell.product != PRODUCT]
    if not trained:
        raise InputError(f"--only {plan.only}: the start alone is no study; take more of its runs")
    start = read_product(StartFile, untrained.folder / PRODUCT) if untrained else None
    write_all(out, plan, untrained, start, trained)


_TITLE = "What a model is worth at each ε of a hospital"
PROSTATE = Study(
    "hospital-privacy-prostate", f"{_TITLE}: prostate, Dice (not in the paper)", "prostate", cells, write,
    runs=19, bases=PROSTATE_BASES,
)  # fmt: skip
ICH = Study(
    "hospital-privacy-ich", f"{_TITLE}: haemorrhage, AUC (not in the paper)", "ich", cells, write,
    runs=19, bases=ICH_BASES,
)  # fmt: skip
