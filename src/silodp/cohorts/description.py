"""A cohort in numbers: what `cohort.json` of a run says, and what the tables show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from silodp.cohorts.cohort import Cohort


def describe(cohort: Cohort) -> dict[str, Any]:
    """Counts of images and classes by hospital and part, and what is known of where they come from."""
    first = cohort.hospitals[0].train
    names = list(cohort.about.get("classes") or _numbered(cohort))
    channels, height, width = first.images.shape[1:]
    targets = {
        hospital.name: {part: examples.targets for part, examples in hospital.parts.items()}
        for hospital in cohort.hospitals
    }
    counts = count(targets, names)
    return {
        "cohort": cohort.name,
        "images": sum(part["images"] for hospital in counts.values() for part in hospital.values()),
        "channels": channels,
        "size": [height, width],
        "storage": str(first.images.dtype).removeprefix("torch."),
        "target": "mask" if first.targets.ndim == 4 else "class",
        "classes": names,
        "hospitals": counts,
        **{key: value for key, value in cohort.about.items() if key != "classes"},
    }


def count(hospitals: Mapping[str, Mapping[str, Tensor]], names: list[str]) -> dict[str, Any]:
    """Images, and images of each class or with something in each mask, from targets by hospital and part."""
    return {
        hospital: {
            part: {"images": len(targets), "classes": _counts(targets, names)}
            for part, targets in parts.items()
        }
        for hospital, parts in hospitals.items()
    }


def in_short(description: dict[str, Any]) -> dict[str, Any]:
    """What a run's summary says of its cohort."""
    kept = ("cohort", "images", "patients", "simulated", "partition", "position_auc", "notes")
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


def _counts(targets: Tensor, names: list[str]) -> dict[str, int]:
    if targets.ndim == 4:
        return {name: int(targets[:, number].flatten(1).any(1).sum()) for number, name in enumerate(names)}
    return {name: int((targets == number).sum()) for number, name in enumerate(names)}
