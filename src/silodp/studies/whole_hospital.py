"""Studies with privacy for whole hospitals: what they start from, a cell at a given ε, and its work.

The recipe is that of the presets prostate-hospital and ich-hospital: from a start of generated images only
the norm layers' scales and shifts and the last layer train, and the budget sets the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.files import private_folder, write_json
from silodp.runs.schema import ModelTest, StartRecord, Values
from silodp.runs.threads import threads
from silodp.studies.study import Base, Cell, Plan, Scale, read_product, train_or_resume

if TYPE_CHECKING:
    from silodp.runs.personal import Tuning


def _bases(
    preset: str, slices: tuple[int, int, int], image_size: int, checkpoint_every: int
) -> dict[Scale, Base]:
    """What cells start from at each scale; images are smaller than the start's 96² except at paper scale."""
    smoke = {"rounds": 2, "cohort.hospitals": 3, "cohort.image_size": 32, "local.batch_size": 4}
    small = {"checkpoint_every": checkpoint_every, "cohort.image_size": image_size}
    return {
        "smoke": Base(preset, smoke | {"cohort.slices": slices[0]}),
        "small": Base(preset, small | {"cohort.slices": slices[1]}, file_size=96),
        "paper": Base(preset, {"cohort.slices": slices[2]}),
    }


# At `small` 64², not the start's 96², where it has nothing left to learn from images of its own generator.
# A run of the recipe takes 40 seconds of a core, one of all parameters two to three minutes.
PROSTATE_BASES = _bases("prostate-hospital", (48, 240, 2808), image_size=64, checkpoint_every=12)
ICH_BASES = _bases("ich-hospital", (24, 800, 15_000), image_size=48, checkpoint_every=10)

RECIPE = "recipe"

_COHORT_OF = {"pelvis": "synthetic-mri", "head": "synthetic-ct"}  # with the same generator as a start
_NO_NOISE = {"budget": None, "privacy.noise_multiplier": 0.0, "clipping.rule": "none"}


def cell_at(
    plan: Plan,
    method: str,
    epsilon: float,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    variant: str = "",
    **other: Any,
) -> Cell:
    """A cell at an ε of a hospital; without changes it is the recipe.

    Args:
        method: a word for it.
        epsilon: of a hospital, for all rounds together; infinite: no noise and no clipping.
        changes: settings, such as {"model.trainable": "all"}.
        variant: a word for the changes that are not part of the method.
        other: further fields of `Cell`.
    """
    settings = dict(changes or {})
    if math.isinf(epsilon):
        settings = {key: value for key, value in settings.items() if not key.startswith("clipping.")}
        settings |= _NO_NOISE
    else:
        settings |= {"budget.epsilon": epsilon, "budget.unit": "hospital", "budget.sets_noise": True}
    words = [method, f"eps{epsilon:g}" if epsilon < math.inf else "no-privacy", variant]
    columns = {"method": method, "epsilon_asked": epsilon}
    return plan.named_cell(words, columns, seed, settings, **other)


def same_generator(plan: Plan) -> list[str]:
    """A caveat where the start was trained on images of the cohort's own generator."""
    from silodp.models.start import read_start

    start = plan.base.model.start
    drawn = read_start(start).about.get("kind") if start is not None else None
    if _COHORT_OF.get(str(drawn)) != plan.base.cohort.kind:
        return []
    return [
        f"The start, {start}, was trained on images of the generator that drew this cohort, in other sizes, "
        "contrasts and zooms. So the figures show how few parameters work with much noise, not what a start "
        "is worth on real images; use --cohort FILE for that."
    ]


START_PRODUCT = "start.json"


class StartFile(TypedDict):
    """start.json: the start and its test without training."""

    start: StartRecord
    test: ModelTest


def score_start(experiment: Experiment, folder: Path, device: str) -> None:
    """Tests the network as it is before round one; trains nothing and makes no run."""
    from silodp.runs.build import build
    from silodp.runs.record import start_record, test_record

    with threads(experiment.threads):
        parts = build(experiment, device=device)
        batch = parts.experiment.evaluation.batch if parts.mixes_images() else "any"
        scores = parts.engine.evaluate(parts.first_state().model, "test", thorough=True)
    start = start_record(parts.experiment)
    if start is None:
        raise InputError("model.start: not set, so there is no start to test; give one")
    content: StartFile = {"start": start, "test": test_record(0, scores, batch, None)}
    private_folder(folder)
    write_json(folder / START_PRODUCT, content, indent=None)


def product_of(tuning: Tuning) -> str:
    """File name for a way of fine-tuning, which is not part of the run: other settings, another file."""
    return f"personal-{tuning.epochs}-{tuning.learning_rate:g}-{tuning.batch_size}.json"


class PersonalFile(TypedDict):
    """Scores of each hospital's models on its own test images, by hospital and model."""

    hospitals: dict[str, dict[str, Values]]


def train_and_personalise(experiment: Experiment, folder: Path, device: str, tuning: Tuning) -> None:
    """Trains or resumes the run, then fine-tunes at each hospital; keeps the scores, not the models."""
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
                write_json(so_far, {"hospitals": done}, indent=None)
    so_far.rename(product)
