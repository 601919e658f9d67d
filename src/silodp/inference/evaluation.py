"""A trained model on new labelled images: how well it does there, by hospital and image by image."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silodp.cohorts.catalogue import OnRead
from silodp.cohorts.cohort import Cohort, Examples, HospitalData
from silodp.cohorts.inspection import recognise
from silodp.cohorts.loading import read_store, refuse_unusable
from silodp.cohorts.people import codes, people_of
from silodp.cohorts.store import Store
from silodp.errors import InputError
from silodp.inference.predictor import Predictor
from silodp.noise.streams import derive_seed
from silodp.runs.record import test_record
from silodp.runs.schema import ModelTest
from silodp.tables import write_csv
from silodp.tasks import task_named
from silodp.tasks.scores import Scores, score

EVERYONE = "all"  # where the files name no hospital


@dataclass(frozen=True)
class ImageScore:
    """The metrics of one image alone, NaN where one is not defined; what says most of it comes first.

    Of masks that is the task's headline; of classes, which have no AUC alone, `truth`: the probability that
    the model gives to the true one.
    """

    hospital: str
    name: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """What a model says of labelled images, and how good that is.

    Attributes:
        test: its figures, as a run's summary has them.
        each: those of every image, where they were asked for.
        cohort: the images, all of them for testing.
        said: by hospital: (n, classes) logits, or which pixels are marked, (n, masks, h, w).
        left_out: how many things could not be used.
    """

    test: ModelTest
    each: tuple[ImageScore, ...]
    cohort: Cohort
    said: Mapping[str, Tensor]
    left_out: int


def evaluate_files(
    predictor: Predictor, given: Mapping[str, Any], *, each: bool = False, on_read: OnRead | None = None
) -> Evaluation:
    """What the model scores on labelled images, none of which it is trained on here.

    Args:
        predictor: of a finished run.
        given: settings of the section `cohort`, with a path; size and channels are the model's.
        each: whether every image is scored by itself, too.
        on_read: told how many files of how many have been decoded.
    """
    form = predictor.preparation.settings.model_dump(include={"image_size", "channels", "storage", "fit"})
    settings, catalogue, _ = recognise(given, form)
    store = read_store(settings, on_read, catalogue)
    refuse_unusable(store, settings)
    _refuse_other_data(predictor, store, str(given["path"]))
    people = people_of(store.rows, settings)
    groups: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(store.rows):
        groups[row.hospital or EVERYONE].append(number)
    task, seed = task_named(predictor.experiment.task), predictor.experiment.seed
    scores: dict[str, Scores] = {}
    said: dict[str, Tensor] = {}
    images: list[ImageScore] = []
    hospitals: list[HospitalData] = []
    for hospital, mine in sorted(groups.items()):
        known = people[mine]
        patients = None if (known < 0).any() else torch.from_numpy(codes(known.tolist()))
        test = Examples(*(torch.from_numpy(np.array(part[mine])) for part in (store.images, store.targets)))
        logits = predictor.logits(test.images)
        scores[hospital] = score(
            task, logits, test.targets, patients, derive_seed(seed, "bootstrap", hospital)
        )
        hospitals.append(HospitalData(hospital, test[:0], test[:0], test))
        said[hospital] = logits > 0 if task.target == "mask" else logits  # a byte a pixel is enough
        for one, number in enumerate(mine if each else ()):
            alone = task.metrics(logits[one : one + 1], test.targets[one : one + 1])
            if task.target == "class":
                shares = logits[one].double().softmax(0)
                alone = {"truth": float(shares[int(test.targets[one])]), **alone}
            images.append(ImageScore(hospital, store.rows[number].name, alone))
    mixes = predictor.mixes_images(torch.from_numpy(np.array(store.images[:2])))
    batch = predictor.experiment.evaluation.batch
    record = test_record(predictor.round, scores, batch if mixes else "any", None)
    path = Path(given["path"])
    cohort = Cohort(path.name or path.resolve().name, tuple(hospitals))
    return Evaluation(record, tuple(images), cohort, said, len(store.problems))


def write_images(images: Sequence[ImageScore], out: Path) -> None:
    """A csv file with a row for each image."""
    rows = [
        {"hospital": one.hospital, "image": one.name}
        | {name: f"{value:.6f}" for name, value in one.values.items()}
        for one in images
    ]
    write_csv(out, rows)


def _refuse_other_data(predictor: Predictor, store: Store, path: str) -> None:
    if store.target != predictor.target:
        words = {"mask": "masks", "class": "classes"}
        raise InputError(
            f"{path}: its targets are {words[store.target]}, and the model predicts {words[predictor.target]}"
        )
    if predictor.target == "class" and not set(store.classes) <= set(predictor.classes):
        raise InputError(
            f"{path}: classes {', '.join(store.classes)}, and the model knows "
            f"{', '.join(predictor.classes)}; name them alike"
        )
    if predictor.target == "class" and store.classes != predictor.classes[: len(store.classes)]:
        raise InputError(
            f"{path}: classes {', '.join(store.classes)} in another order or number than the model's "
            f"{', '.join(predictor.classes)}; give images of every class"
        )
    if predictor.target == "mask" and len(store.classes) != len(predictor.classes):
        raise InputError(
            f"{path}: {len(store.classes)} masks an image, and the model predicts {len(predictor.classes)}"
        )
