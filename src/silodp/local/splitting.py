"""A hospital in v disjoint parts: which images go where, and how many parts there are images for."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from silodp.cohorts.cohort import HospitalData


def split(
    samples: int, intermediaries: int, generator: torch.Generator, patients: Tensor | None = None
) -> list[Tensor]:
    """Shuffles the images 0…samples−1 into `intermediaries` disjoint parts of as equal sizes as can be.

    Guarantee: a patient is in one part only, so that what is promised to an intermediary speaks of people.
    Where patients are not known, one person's images may be in several parts.

    Args:
        patients: (samples,) whose each image is; None where that is not known.
    """
    if patients is None:
        return list(torch.randperm(samples, generator=generator).tensor_split(intermediaries))
    _, person, counts = torch.unique(patients, return_inverse=True, return_counts=True)
    shuffled = torch.randperm(len(counts), generator=generator)
    order = shuffled[counts[shuffled].argsort(descending=True, stable=True)]
    part_of = torch.empty(len(counts), dtype=torch.int64)
    part_of[order] = torch.tensor(_dealt(counts[order].tolist(), intermediaries)[0], dtype=torch.int64)
    return [(part_of[person] == part).nonzero().flatten() for part in range(intermediaries)]


def _dealt(counts: Sequence[int], parts: int) -> tuple[list[int], list[int]]:
    """Patients with so many images each, the largest first, go to the part that has the fewest so far.

    Returns:
        The part of each patient, and the parts' sizes, which do not hang on the order of equal patients.
    """
    heap = [(0, part) for part in range(parts)]
    where, sizes = [], [0] * parts
    for count in counts:
        _, part = heapq.heappop(heap)
        where.append(part)
        sizes[part] += count
        heapq.heappush(heap, (sizes[part], part))
    return where, sizes


def split_sizes(samples: int, intermediaries: int) -> list[int]:
    """The sizes of equal parts, which fix the steps of a round: public, since a training set's size is."""
    small, larger = divmod(samples, intermediaries)
    return [small + 1] * larger + [small] * (intermediaries - larger)


def most_intermediaries(samples: int, min_samples: int, patients: Tensor | None = None) -> int:
    """The largest v, at least 1, up to which every intermediary of a hospital gets `min_samples` images."""
    if patients is None:
        return max(1, samples // min_samples)
    counts = sorted(torch.unique(patients, return_counts=True)[1].tolist(), reverse=True)
    most = 1
    while most < len(counts) and min(_dealt(counts, most + 1)[1]) >= min_samples:
        most += 1
    return most


def room(hospitals: Iterable[HospitalData], min_samples: int) -> dict[str, int]:
    """The largest v of each hospital, by name: how far its training images and patients go."""
    return {
        one.name: most_intermediaries(len(one.train), min_samples, one.train.patients) for one in hospitals
    }


def cap(wanted: int, room: Mapping[str, int]) -> tuple[int, bool]:
    """v as far as every hospital has room for it, and whether that is less than wanted."""
    most = min(room.values())
    return min(wanted, most), wanted > most
