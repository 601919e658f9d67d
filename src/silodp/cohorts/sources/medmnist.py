"""MedMNIST files: `train_images`, `train_labels`, `val_…`, `test_…`; binary or multi-class, 2D.

Yang et al., «MedMNIST v2», Scientific Data 2023.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from silodp.cohorts.catalogue import Catalogue, Pictures, Row, Scan
from silodp.cohorts.kinds import FileCohort
from silodp.cohorts.sources.npz import as_images, numbers_of, open_arrays
from silodp.errors import InputError

SPLITS = {"train": "train", "val": "validation", "test": "test"}


class MedMnist(FileCohort):
    """A MedMNIST file, with its own parts."""

    takes: ClassVar[tuple[str, ...]] = (".npz",)
    task: ClassVar[str | None] = "classification"
    kind: Literal["medmnist"] = "medmnist"

    def scan(self, root: Path) -> Catalogue:
        with open_arrays(root) as arrays:
            wanted = [f"{split}_{what}" for split in SPLITS for what in ("images", "labels")]
            if missing := [name for name in wanted if name not in arrays]:
                raise InputError(
                    f"cohort.path = {root}: {', '.join(missing)} missing; a MedMNIST file has "
                    f"{', '.join(wanted)}"
                )
            labels = [arrays[f"{split}_labels"] for split in SPLITS]
            if any(part.reshape(len(part), -1).shape[1] != 1 for part in labels):
                raise InputError(
                    f"cohort.path = {root}: several labels an image (as in ChestMNIST); "
                    "silodp takes binary and multi-class subsets"
                )
            classes = tuple(
                map(str, np.unique(np.concatenate([part.reshape(-1) for part in labels])).tolist())
            )
        place = root.resolve()  # which may be a link to anywhere
        return Catalogue(
            "medmnist",
            place.parent,
            f"a MedMNIST file, {root.stem}, with its own training, validation and test images",
            "class",
            classes,
            (Scan(root.name, (place,)),),
            partial(_read, classes=classes),
        )


def _read(scan: Scan, classes: tuple[str, ...]) -> Pictures:
    with open_arrays(scan.files[0]) as arrays:
        images = {split: as_images(arrays[f"{split}_images"]) for split in SPLITS}
        labels = np.concatenate([arrays[f"{split}_labels"].reshape(-1) for split in SPLITS])
    together = np.concatenate(list(images.values()))
    size = (together.shape[-2], together.shape[-1])
    rows = tuple(
        Row(f"{scan.name}#{split}-{number}", part=part, size=size)
        for split, part in SPLITS.items()
        for number in range(len(images[split]))
    )
    return Pictures(together, numbers_of(labels, classes), rows)
