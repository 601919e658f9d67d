"""Metrics of a model on a set of images, with bootstrap intervals over people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from silodp.tasks.task import Task

RESAMPLES = 1000
LEVEL = 0.95  # of the intervals
FEW = 50  # people below which an interval says little
_AT_ONCE = 4_000_000  # weights in memory

Interval = tuple[float, float]


@dataclass(frozen=True)
class Scores:
    """The metrics of one hospital.

    Attributes:
        values: metrics by name; NaN where undefined.
        images: number of images.
        patients: number of people; None if unknown.
        resampled: (RESAMPLES,) bootstrap values of each metric; empty if not computed.
    """

    values: dict[str, float]
    images: int
    patients: int | None
    resampled: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def people(self) -> int:
        """The number of people, or of images where people are unknown: what the bootstrap draws."""
        return self.images if self.patients is None else self.patients

    @property
    def intervals(self) -> dict[str, Interval]:
        """NaN where there is one person: from one, nobody can tell how people differ."""
        return {
            name: _interval(drawn) if self.people > 1 else (math.nan, math.nan)
            for name, drawn in self.resampled.items()
        }


def score(task: Task, logits: Tensor, targets: Tensor, patients: Tensor | None, seed: int) -> Scores:
    """Computes all metrics with a bootstrap over people, or over images where people are unknown.

    Args:
        task: whose metrics.
        logits: of n images, on the CPU.
        targets: of these images.
        patients: (n,) numbers, equal for images of one person, or None.
        seed: of the bootstrap.
    """
    import torch

    count = len(targets)
    numbers = (
        torch.arange(count) if patients is None else torch.unique(patients, return_inverse=True)[1].cpu()
    )
    people = int(numbers.max()) + 1
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _AT_ONCE // count)
    drawn = []
    for first in range(0, RESAMPLES, rows):
        some = min(rows, RESAMPLES - first)
        chosen = torch.randint(people, (some, people), generator=generator)
        times = torch.zeros(some, people, dtype=torch.float64)
        times.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64))
        drawn.append(times[:, numbers])
    # The first row weighs every image once and gives the metrics themselves.
    everything = torch.cat([torch.ones(1, count, dtype=torch.float64), drawn[0]])
    measure = task.measure(logits, targets)
    found = [measure(everything), *(measure(weights) for weights in drawn[1:])]
    values = {name: float(value[0]) for name, value in found[0].items()}
    parts = [{name: value[1:] for name, value in found[0].items()}, *found[1:]]
    resampled = {name: torch.cat([part[name] for part in parts]) for name in values}
    return Scores(values, count, None if patients is None else people, resampled)


def mean_intervals(hospitals: Sequence[Scores]) -> dict[str, Interval]:
    """Bootstrap intervals of the unweighted mean over hospitals; empty without hospitals.

    NaN where a hospital has one person, of whose variation nothing is known.
    """
    import torch

    known = all(one.people > 1 for one in hospitals)
    return {
        name: _interval(torch.stack([one.resampled[name] for one in hospitals]).nanmean(0))
        if known
        else (math.nan, math.nan)
        for name in (hospitals[0].resampled if hospitals else ())
    }


def _interval(drawn: Tensor) -> Interval:
    """The central `LEVEL` of the bootstrap values; NaN if none is defined."""
    edges = drawn.nanquantile(drawn.new_tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    return float(edges[0]), float(edges[1])
