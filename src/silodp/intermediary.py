"""Intermediaries: splitting a hospital into v disjoint parts, and the rules that choose v (Eq. 2, 3)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from silodp.settings import IntermediarySettings

if TYPE_CHECKING:
    from silodp.cohorts.cohort import HospitalData

ESTIMATING = ("adaptive", "initial", "stable", "progressive")
"""Rules that read un-noised norms (as the authors do): their first round only measures."""


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


def closed_form(noise_multiplier: float, parameters: int, hospitals: float) -> float:
    """v* = sqrt(z·√d / N), where the adaptive rule settles if C is the median norm. Needs no data."""
    return math.sqrt(noise_multiplier * math.sqrt(parameters) / hospitals)


@dataclass(frozen=True)
class Ratio:
    """The paper's Eq. 2: noise level ξ, diversity φ and their ratio λ.

    All three come from un-noised norms, so no ε covers them.
    """

    noise_norm: float  # ‖ζ‖, of the noise that reaches the mean
    sum_of_norms: float  # Σ‖Δ_ij‖, before clipping
    norm_of_sum: float  # ‖ΣΔ̂_ij‖, after clipping

    @property
    def xi(self) -> float:
        return self.noise_norm / self.norm_of_sum if self.norm_of_sum else math.inf

    @property
    def phi(self) -> float:
        return self.sum_of_norms / self.norm_of_sum if self.norm_of_sum else math.inf

    @property
    def lambda_(self) -> float:
        return self.noise_norm / self.sum_of_norms if self.sum_of_norms else math.inf


def estimates(settings: IntermediarySettings, round_: int) -> bool:
    """Whether the rule reads this round's un-noised ratio."""
    return settings.rule in ESTIMATING and (settings.rule != "initial" or round_ == 1)


def first_count(
    settings: IntermediarySettings, noise_multiplier: float, parameters: int, hospitals: float
) -> int:
    """v of round one, before any cap. Without noise there is nothing to harmonise, so v is 1."""
    if settings.rule == "closed-form":
        return max(1, math.floor(closed_form(noise_multiplier, parameters, hospitals)))
    return settings.count


def next_count(
    settings: IntermediarySettings, count: int, round_: int, ratio: Ratio, hospitals: float
) -> int:
    """v of the next round, before any cap: the target is λ = 1/N, reached by v ← v·sqrt(N·λ).

    `stable` grows by whole factors only, `progressive` goes half of the way up, `initial` estimates in
    round one and keeps it. All of them shrink at once.
    """
    if not estimates(settings, round_):
        return count
    if not math.isfinite(ratio.lambda_):
        return count  # nobody answered: nothing was measured
    factor = math.sqrt(hospitals * ratio.lambda_)
    if factor >= 1 and settings.rule == "stable":
        return count * math.floor(factor)
    if factor >= 1 and settings.rule == "progressive":
        return count + math.floor((factor - 1) * count / 2)
    return max(1, math.floor(factor * count))
