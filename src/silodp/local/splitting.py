"""Splitting a hospital's images into v disjoint intermediaries, and the largest v that they allow.

The paper's D_i = ⊔_j D_ij: what ε for an intermediary speaks of is one D_ij, so the parts must be disjoint,
and of whole patients where those are known.
"""

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

    Guarantee: a patient is in one part only, so that an intermediary's ε covers whole people. Where patients
    are unknown, one person's images may be in several parts.

    Args:
        samples: number of images.
        intermediaries: v.
        generator: on the CPU.
        patients: (samples,) int64 patient of each image; None where unknown.

    Returns:
        v tensors of int64 indices, on the CPU.
    """
    if patients is None:
        return list(torch.randperm(samples, generator=generator).tensor_split(intermediaries))
    _, person, counts = torch.unique(patients, return_inverse=True, return_counts=True)
    shuffled = torch.randperm(len(counts), generator=generator)
    order = shuffled[counts[shuffled].argsort(descending=True, stable=True)]
    part_of = torch.empty(len(counts), dtype=torch.int64)
    part_of[order] = torch.tensor(_assign(counts[order].tolist(), intermediaries)[0], dtype=torch.int64)
    return [(part_of[person] == part).nonzero().flatten() for part in range(intermediaries)]


def _assign(counts: Sequence[int], parts: int) -> tuple[list[int], list[int]]:
    """Assigns patients, given by their image counts, the largest first, each to the smallest part so far.

    Returns:
        The part of each patient, and the parts' sizes, which do not depend on the order of equal counts.
    """
    heap = [(0, part) for part in range(parts)]
    part_of, sizes = [], [0] * parts
    for count in counts:
        _, part = heapq.heappop(heap)
        part_of.append(part)
        sizes[part] += count
        heapq.heappush(heap, (sizes[part], part))
    return part_of, sizes


def split_sizes(samples: int, intermediaries: int) -> list[int]:
    """Sizes of equal parts, which fix the steps of a round: public, since training set sizes are."""
    small, larger = divmod(samples, intermediaries)
    return [small + 1] * larger + [small] * (intermediaries - larger)


def most_intermediaries(samples: int, min_samples: int, patients: Tensor | None = None) -> int:
    """The largest v, at least 1, for which every intermediary of a hospital gets `min_samples` images."""
    if patients is None:
        return max(1, samples // min_samples)
    counts = sorted(torch.unique(patients, return_counts=True)[1].tolist(), reverse=True)
    most = 1
    while most < len(counts) and min(_assign(counts, most + 1)[1]) >= min_samples:
        most += 1
    return most


def room(hospitals: Iterable[HospitalData], min_samples: int) -> dict[str, int]:
    """The largest v of each hospital, by name, that its training images and patients allow."""
    return {
        one.name: most_intermediaries(len(one.train), min_samples, one.train.patients) for one in hospitals
    }


def cap(wanted: int, room: Mapping[str, int]) -> tuple[int, bool]:
    """Caps v at what every hospital allows; also returns whether that is less than wanted."""
    most = min(room.values())
    return min(wanted, most), wanted > most
