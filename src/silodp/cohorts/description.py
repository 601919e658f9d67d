"""A cohort in numbers: the content of a run's `cohort.json`, and of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.cohort import Cohort


def describe(cohort: Cohort, classes: int | None = None) -> dict[str, Any]:
    """Counts of images and classes by hospital and part, and what is known of where they come from.

    Args:
        cohort: checked.
        classes: the agreed number of classes; None: they were counted in the labels, and this is recorded.
    """
    first = cohort.hospitals[0].train
    names = list(cohort.about.get("classes") or _numbered(cohort))
    names += [str(number) for number in range(len(names), classes or 0)]
    channels, height, width = first.images.shape[1:]
    hospitals = {
        hospital.name: {
            part: {"images": len(examples), "classes": counts_of(examples.targets.numpy(force=True), names)}
            for part, examples in hospital.parts.items()
        }
        for hospital in cohort.hospitals
    }
    return {
        "cohort": cohort.name,
        "images": sum(part["images"] for hospital in hospitals.values() for part in hospital.values()),
        "channels": channels,
        "size": [height, width],
        "storage": str(first.images.dtype).removeprefix("torch."),
        "target": "mask" if first.targets.ndim == 4 else "class",
        "classes": names,
        "classes_counted": first.targets.ndim == 1 and classes is None,
        "whole_patients": cohort.knows_patients,
        "hospitals": hospitals,
        **{key: value for key, value in cohort.about.items() if key != "classes"},
    }


def in_short(description: dict[str, Any]) -> dict[str, Any]:
    """The part of a description that a run's summary has."""
    kept = (
        "cohort", "images", "patients", "simulated", "partition", "position_auc", "notes", "classes_counted",
        "whole_patients",
    )  # fmt: skip
    known = {key: description[key] for key in kept if description.get(key) is not None}
    return known | {
        "hospitals": len(description["hospitals"]),
        "left_out": len(description.get("left_out", ())),
    }


def _numbered(cohort: Cohort) -> list[str]:
    targets = [hospital.train.targets for hospital in cohort.hospitals]
    if targets[0].ndim == 4:
        return [str(number + 1) for number in range(targets[0].shape[1])]
    return [str(number) for number in range(max(int(labels.max()) for labels in targets) + 1)]


def counts_of(targets: NDArray[Any], names: Sequence[str]) -> dict[str, int]:
    """Images of each class, or with something in each mask."""
    if not len(targets):
        return dict.fromkeys(names, 0)
    shown = targets.any((2, 3)) if targets.ndim == 4 else targets[:, None] == np.arange(len(names))
    return dict(zip(names, shown.sum(0).tolist(), strict=True))
