"""A trained model on new labelled images: how well it does there, by hospital and image by image."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silodp.cohorts.catalogue import OnRead
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


def evaluate_files(
    predictor: Predictor, given: Mapping[str, Any], out: Path | None = None, on_read: OnRead | None = None
) -> ModelTest:
    """What the model scores on labelled images, none of which it is trained on.

    Args:
        predictor: of a finished run.
        given: settings of the section `cohort`, with a path; size and channels are the model's.
        out: a csv file for each image's figures; none is written without.
        on_read: told how many files of how many have been decoded.
    """
    if out is not None and out.exists():
        raise InputError(f"--out {out}: exists already; give a new file")
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
    rows: list[dict[str, Any]] = []
    for hospital, mine in sorted(groups.items()):
        targets = torch.from_numpy(np.asarray(store.targets[mine]))
        logits = predictor.logits(torch.from_numpy(np.array(store.images[mine])))
        known = people[mine]
        patients = None if (known < 0).any() else torch.from_numpy(codes(known.tolist()))
        scores[hospital] = score(task, logits, targets, patients, derive_seed(seed, "bootstrap", hospital))
        if out is not None:
            for one, number in enumerate(mine):
                alone = task.metrics(logits[one : one + 1], targets[one : one + 1])
                each = {name: f"{value:.6f}" for name, value in alone.items()}
                rows.append({"hospital": hospital, "image": store.rows[number].name, **each})
    if out is not None:
        write_csv(out, rows)
    mixes = predictor.mixes_images(torch.from_numpy(np.array(store.images[:2])))
    batch = predictor.experiment.evaluation.batch
    return test_record(predictor.round, scores, batch if mixes else "any", None)


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
