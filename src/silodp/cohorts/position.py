"""How well a slice's position in its scan predicts its class: a baseline for classifiers.

Lesions are more frequent at some heights, so a network may learn a slice's position instead of its content.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.partition import Placement
from silodp.cohorts.people import codes

Array = NDArray[np.float64]

BINS = 20  # of positions, with as many training images in each
TRAIN, VALIDATION, TEST = range(len(PARTS))


def position_auc(
    positions: Array,
    labels: NDArray[np.int64] | None,
    placement: Placement,
    patients: Sequence[Hashable | None],
) -> float | None:
    """The test AUC of a prediction from position alone: the mean over hospitals, as for a model.

    The prediction is the share of class 1 among all training images at similar positions: as in the files, or
    relative to the patient's other slices, whichever does better on the validation images.

    Args:
        positions: (n,) of the slices; NaN where unknown.
        labels: (n,) classes.
        placement: hospital and part of each image.
        patients: (n,) ids; None where unknown.

    Returns:
        None unless all positions and patients are known, there are two classes, and both are among the test
        images of some hospital.
    """
    if labels is None or not np.isfinite(positions).all() or any(patient is None for patient in patients):
        return None
    classes = np.unique(labels)
    if len(classes) != 2:
        return None
    truth = labels == classes[1]
    train = placement.part == TRAIN
    found = []
    for numbers in (_relative(positions, placement.hospital, patients), positions):
        scores = _rates(numbers, truth, train)
        found.append([_mean_auc(scores, truth, placement, part) for part in (VALIDATION, TEST)])
    _, test = max(found, key=lambda pair: -1.0 if pair[0] is None else pair[0])
    return test


def _relative(positions: Array, hospital: NDArray[np.int64], patients: Sequence[Hashable | None]) -> Array:
    """The rank of a slice among its patient's, from 0 to 1; slices at one position share a rank."""
    from scipy.stats import rankdata

    people = codes(zip(hospital.tolist(), patients, strict=True))  # ids may be unique within a hospital only
    # Ranks among all slices, in the order of people; so a person's begin where those of the one before end.
    ranks = rankdata(np.unique([people, positions], axis=1, return_inverse=True)[1])
    counts = np.bincount(people)
    relative: Array = (ranks - (np.cumsum(counts) - counts)[people] - 0.5) / counts[people]
    return relative


def _rates(numbers: Array, truth: NDArray[np.bool_], train: NDArray[np.bool_]) -> Array:
    """For each image the share of class 1 in its bin of training images, shrunk towards the overall share."""
    edges = np.unique(np.quantile(numbers[train], np.arange(1, BINS) / BINS))
    bins = np.searchsorted(edges, numbers, side="right")
    images = np.bincount(bins[train], minlength=len(edges) + 1)
    hits = np.bincount(bins[train & truth], minlength=len(edges) + 1)
    rates: Array = (hits + truth[train].mean()) / (images + 1)
    return rates[bins]


def _mean_auc(scores: Array, truth: NDArray[np.bool_], placement: Placement, part: int) -> float | None:
    """The plain mean over the hospitals that have both classes in this part."""
    areas = []
    for hospital in range(len(placement.hospitals)):
        mine = (placement.hospital == hospital) & (placement.part == part)
        if len(np.unique(truth[mine])) == 2:
            areas.append(_auc(scores[mine], truth[mine]))
    return float(np.mean(areas)) if areas else None


def _auc(scores: Array, truth: NDArray[np.bool_]) -> float:
    """The chance that an image of class 1 scores above one of class 0; a tie is half."""
    from scipy.stats import rankdata

    hits, others = int(truth.sum()), int((~truth).sum())
    return float((rankdata(scores)[truth].sum() / hits - (hits + 1) / 2) / others)
