"""How far apart an observer showed two worlds to be, in the measure that the ledger itself claims: μ.

A Gaussian release claims a whole trade-off curve: whoever has false alarms at rate α misses at least
Φ(Φ⁻¹(1 − α) − μ) of what is there (Dong, Roth and Su 2022). So an observer who guesses right more often than
Φ(μ/2), the mean over both worlds, has refuted the claim, whatever the scores' distributions are. That shows
far more than rates at one (ε, δ) would, for (ε, δ) is one line below the curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

CHOOSING = 5
"""One federation in so many chooses score and threshold; the others are counted."""


@dataclass(frozen=True)
class Bound:
    """A lower bound on μ, from counted guesses."""

    mu: float  # a mechanism whose every trade-off is above this μ's curve shows so much too seldom
    most: float  # what as many federations would show if no guess were wrong
    score: str  # by which the observer guessed
    true_positives: int  # of `with_canary` federations
    with_canary: int
    false_positives: int  # of `without_canary` federations
    without_canary: int

    @property
    def right(self) -> int:
        """Guesses that were right, of `guesses`."""
        return self.true_positives + self.without_canary - self.false_positives

    @property
    def guesses(self) -> int:
        return self.with_canary + self.without_canary


def lower_bound(present: Numbers, absent: Numbers, names: Sequence[str], confidence: float) -> Bound:
    """μ from scores (runs × kinds of score, by `names`) with and without the canary, however distributed.

    Some of the runs choose the score, its sign and the threshold; the others are counted. As many are
    counted with the canary as without it.
    """
    if len(present) != len(absent):
        raise ValueError(f"{len(present)} federations with the canary, {len(absent)} without")
    chosen = choosing(len(present))
    kind, sign, threshold = _choose(present[:chosen], absent[:chosen])
    guessed, mistaken = (sign * scores[chosen:, kind] > threshold for scores in (present, absent))
    hits, alarms, counted = int(guessed.sum()), int(mistaken.sum()), len(guessed)
    shown, most = (
        float(least_mu(right, 2 * counted, confidence)) for right in (hits + counted - alarms, 2 * counted)
    )
    return Bound(shown, most, names[kind], hits, counted, alarms, counted)


def choosing(runs: int) -> int:
    """How many of so many federations of a kind choose; the others are counted."""
    return runs // CHOOSING


def least_mu(right: Any, of: int, confidence: float) -> Numbers:
    """The μ that so many right guesses show, half of them made in either world; zero at least.

    Clopper and Pearson's limit for one chance holds for two that differ: of all sums of independent guesses
    with the same mean the binomial one strays farthest (Hoeffding 1956).
    """
    from scipy.special import betaincinv, ndtri

    right = np.asarray(right, dtype=float)
    least = betaincinv(np.maximum(right, 1), of - right + 1, 1 - confidence)
    return np.asarray(2 * ndtri(np.clip(least, 0.5, None)) * (right > 0))


def _choose(present: Numbers, absent: Numbers) -> tuple[int, int, float]:
    """A score, its sign, and the threshold midway between the medians: the best one for every pair of
    Gaussian worlds, and steadier than the best on so few. The first score gives way to a clearly better."""
    best, choice = -1.0, (0, 1, 0.0)
    for kind in range(present.shape[1]):
        inside, outside = np.median(present[:, kind]), np.median(absent[:, kind])
        sign = 1 if inside >= outside else -1
        threshold = sign * (inside + outside) / 2
        right = int((sign * present[:, kind] > threshold).sum() + (sign * absent[:, kind] <= threshold).sum())
        if right > best:
            # Two scores as good as each other differ by less than this, by chance.
            best = right + (math.sqrt(2 * len(present)) if kind == 0 else 0)
            choice = (kind, sign, float(threshold))
    return choice
