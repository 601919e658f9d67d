"""Is federation worth it for a hospital? Four models on its own test images, for federations of N hospitals.

Alone: the start, fine-tuned by the hospital on its own images. Released: the recipe's, at ε = 8 for a
hospital. Personal: the released one, fine-tuned in the same way. Federated: all parameters, nobody protected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.files import to_json, write_atomically
from silodp.runs.schema import Values, or_nan
from silodp.runs.threads import threads
from silodp.studies.output import select
from silodp.studies.study import Cell, Found, Plan, Study, read_product, train_or_resume
from silodp.studies.whole_hospital import ICH_BASES, PROSTATE_BASES, RECIPE, run
from silodp.studies.worth_it_output import AtHome, write_all

if TYPE_CHECKING:
    from silodp.runs.personal import Tuning

EPSILON = 8.0
NUMBERS = (3, 6, 10, 20)
FEDERATED = "federated"


def tuning_of(plan: Plan) -> Tuning:
    from silodp.runs.personal import Tuning

    return Tuning(epochs=1, batch_size=4) if plan.scale == "smoke" else Tuning()


def product_of(tuning: Tuning) -> str:
    """Named by how hospitals fine-tune, which is no part of the run: other tuning is another file."""
    return f"personal-{tuning.epochs}-{tuning.learning_rate:g}-{tuning.batch_size}.json"


def cells(plan: Plan) -> list[Cell]:
    tuning = tuning_of(plan)
    work = partial(train_and_personalise, tuning=tuning)
    return [
        cell
        for seed in plan.seeds
        for members in numbers(plan)
        for cell in (
            _cell(plan, RECIPE, EPSILON, members, seed, {}, work=work, product=product_of(tuning)),
            _cell(plan, FEDERATED, math.inf, members, seed, {"model.trainable": "all"}),
        )
    ]


def numbers(plan: Plan) -> list[int]:
    """3, 6, 10 and 20 hospitals, as far as the cohort has them, and all that it has up to 20."""
    there = _there(plan)
    if there < NUMBERS[0]:
        raise InputError(f"cohort: {there} hospitals; worth-it needs {NUMBERS[0]} or more, give it more")
    return sorted({number for number in NUMBERS if number <= there} | {min(there, NUMBERS[-1])})


def _there(plan: Plan) -> int:
    """How many hospitals could train; reads the cohort only where nothing says it."""
    base = plan.base
    return base.participation.members or base.cohort.hospitals or len(plan.training_sizes)


def _cell(
    plan: Plan, method: str, epsilon: float, members: int, seed: int, changes: dict[str, Any], **other: Any
) -> Cell:
    """The first so many hospitals train; where that is all, nothing is set: the run is other studies' too."""
    some = members < _there(plan)
    if some:
        changes = {**changes, "participation.members": members}
    return run(plan, method, epsilon, seed, changes, f"{members}hospitals" * some, **other)


class PersonalFile(TypedDict):
    """What each hospital's models score on its own test images: by hospital, then by model."""

    hospitals: dict[str, dict[str, Values]]


def train_and_personalise(experiment: Experiment, folder: Path, device: str, tuning: Tuning) -> None:
    """The run, or the rest of it, then each hospital's own fine-tuning; scores are kept, models are not."""
    from silodp.cohorts import load_cohort
    from silodp.runs.personal import personalise

    train_or_resume(experiment, folder, device)
    product = folder / product_of(tuning)
    so_far = product.with_name(f"{product.stem}-so-far.json")
    done = read_product(PersonalFile, so_far)["hospitals"] if so_far.exists() else {}
    cohort = load_cohort(experiment.cohort)
    with threads(experiment.threads):
        for hospital in experiment.participation.training(cohort.hospitals):
            if hospital.name not in done:
                found = personalise(folder, hospital.name, tuning, cohort=cohort, device=device)
                done[hospital.name] = {name: dict(one.values) for name, one in found.scores.items()}
                write_atomically(so_far, to_json({"hospitals": done}).encode())
    so_far.rename(product)


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    released = select(found, method=RECIPE)
    if not released:
        raise InputError(f"--only {plan.only}: takes none of the runs at ε = {EPSILON:g}; take more")
    homes = [home for one in released for home in _at_home(plan, one, select(found, method=FEDERATED))]
    write_all(out, plan, found, released, homes, tuning_of(plan), _fewer(plan))


def _at_home(plan: Plan, one: Found, federated: Sequence[Found]) -> list[AtHome]:
    """The hospitals of a run, with what the federation of the same ones without privacy gave each."""
    metric, members, seed = plan.metrics[0], one.summary["members"], int(one.cell.columns["seed"])
    alike = [other for other in select(federated, seed=seed) if other.summary["members"] == members]
    open_ = alike[0].summary["test"]["last"]["hospitals"] if alike else {}
    file = read_product(PersonalFile, one.folder / one.cell.product)
    return [
        AtHome(
            members=members,
            seed=seed,
            hospital=name,
            training_images=one.training_images[name],
            test_images=one.summary["test"]["last"]["tried"][name]["images"],
            alone=or_nan(scores["alone"][metric]),
            released=or_nan(scores["released"][metric]),
            personal=or_nan(scores["personal"][metric]),
            federated=or_nan(open_[name][metric]) if name in open_ else math.nan,
        )
        for name, scores in file["hospitals"].items()
    ]


def _fewer(plan: Plan) -> list[str]:
    """Where the cohort has too few hospitals for the largest federation."""
    most = numbers(plan)[-1]
    if most >= NUMBERS[-1] or plan.scale == "smoke":
        return []
    way_out = (
        "give --cohort a file and deal it out with --set cohort.partition=equal --set cohort.hospitals=20"
        if plan.base.cohort.files is None
        else "deal the images out to more with --set cohort.partition=equal --set cohort.hospitals=20"
    )
    return [f"This cohort has {most} hospitals, so no larger federation is here; {way_out}."]


_TITLE = f"Is federation at ε = {EPSILON:g} worth it for a hospital?"
PROSTATE = Study(
    "worth-it-prostate", f"{_TITLE} Prostate, Dice (not in the paper)", "prostate", cells, write,
    runs=4, bases=PROSTATE_BASES,
)  # fmt: skip
ICH = Study(
    "worth-it-ich", f"{_TITLE} Haemorrhage, AUC (not in the paper)", "ich", cells, write, runs=8,
    bases=ICH_BASES,
)  # fmt: skip
