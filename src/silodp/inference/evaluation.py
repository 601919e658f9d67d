"""Tests a trained model on new labelled images, by hospital and image by image."""

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
from silodp.cohorts.cohort import Cohort, Examples, HospitalData, all_numbers
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

EVERYONE = "all"  # name of the one hospital where the files name none


@dataclass(frozen=True)
class ImageScore:
    """The metrics of a single image, NaN where undefined, the most informative first.

    For masks that is the headline of the task; for classes, since a single image has no AUC, `truth`: the
    probability of the true class.
    """

    hospital: str
    name: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """A model's outputs on labelled images and their metrics.

    Attributes:
        test: metrics by hospital, as in summary.json.
        each: metrics of every image, if requested.
        cohort: the images, all in the test part.
        outputs: by hospital: (n, classes) logits, or predicted masks (n, masks, h, w), bool.
        left_out: number of scans that could not be used.
        files: number of files that were read.
        seen: how many of them the run read as well; None where it read no files.
    """

    test: ModelTest
    each: tuple[ImageScore, ...]
    cohort: Cohort
    outputs: Mapping[str, Tensor]
    left_out: int
    files: int = 0
    seen: int | None = None


def evaluate_files(
    predictor: Predictor, given: Mapping[str, Any], *, each: bool = False, on_read: OnRead | None = None
) -> Evaluation:
    """Tests the model on labelled images without training on them.

    Args:
        predictor: of a finished run.
        given: settings of the section `cohort`, with a path; size and channels are the model's.
        each: whether to score every image by itself, too.
        on_read: called with the number of decoded files and of all files.
    """
    for name in ("hospitals", "partition", "sizes", "alpha", "feature", "shares"):
        if name in given:
            raise InputError(
                f"--set {name}: all images are tested, by hospital as the files name them; leave it out"
            )
    form = predictor.preparation.settings.model_dump(include={"image_size", "channels", "storage", "fit"})
    if predictor.target == "class" and all_numbers(predictor.classes):
        form["classes"] = len(predictor.classes)  # labels that are numbers stay those of the model
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
    outputs: dict[str, Tensor] = {}
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
        outputs[hospital] = logits > 0 if task.target == "mask" else logits
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
    read = [value for name, value in store.files.items() if not name.lower().endswith(".csv")]
    seen = sum(value in predictor.files for value in read) if predictor.files else None
    return Evaluation(record, tuple(images), cohort, outputs, len(store.problems), len(read), seen)


def write_images(images: Sequence[ImageScore], out: Path) -> None:
    """Writes a csv file with a row for each image."""
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
    if (size := store.images.shape[-2:]) != predictor.preparation.size:
        found, taken = (" × ".join(map(str, sides)) for sides in (size, predictor.preparation.size))
        raise InputError(f"{path}: images of {found} pixels, and the model takes {taken}")
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
