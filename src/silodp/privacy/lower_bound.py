"""A lower bound on ε from how well an observer tells two worlds apart.

(ε, δ)-privacy says TPR ≤ e^ε·FPR + δ for every way of guessing, so one observer's rates bound ε from below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """A lower bound on the true ε, from counted guesses."""

    epsilon: float  # the true ε is at least this, with the stated confidence
    most: float  # what as many federations would show if no guess were wrong
    score: str  # by which the observer guessed
    true_positives: int  # of `with_canary` federations
    with_canary: int
    false_positives: int  # of `without_canary` federations
    without_canary: int


def lower_bound(
    present: Numbers, absent: Numbers, names: Sequence[str], delta: float, confidence: float
) -> Bound:
    """ε from scores (runs × kinds of score, by `names`) with and without the canary, however distributed.

    Half of the runs choose score, sign and threshold; the other half are counted.
    Both limits, on TPR and on FPR, hold at once with the stated confidence; ln((TPR − δ)/FPR) and
    ln((TNR − δ)/FNR) need no others, for TNR = 1 − FPR and FNR = 1 − TPR.
    """
    half, other = len(present) // 2, len(absent) // 2
    kind, sign, threshold = _choose(present[:half], absent[:other], delta, confidence)
    guessed = sign * present[half:, kind] >= threshold
    mistaken = sign * absent[other:, kind] >= threshold
    counts = int(guessed.sum()), len(guessed), int(mistaken.sum()), len(mistaken)
    perfect = len(guessed), len(guessed), 0, len(mistaken)
    shown, most = (max(0.0, float(_log_ratio(*these, delta, confidence))) for these in (counts, perfect))
    return Bound(shown, most, names[kind], *counts)


def _choose(present: Numbers, absent: Numbers, delta: float, confidence: float) -> tuple[int, int, float]:
    """The score, its sign and the threshold that show most on these federations."""
    best, choice = -math.inf, (0, 1, 0.0)
    for kind in range(present.shape[1]):
        for sign in (1, -1):
            inside, outside = np.sort(sign * present[:, kind]), np.sort(sign * absent[:, kind])
            points = np.sort(np.concatenate([inside, outside]))
            thresholds = (points[:-1] + points[1:]) / 2
            hits = len(inside) - np.searchsorted(inside, thresholds)
            alarms = len(outside) - np.searchsorted(outside, thresholds)
            shown = _log_ratio(hits, len(inside), alarms, len(outside), delta, confidence)
            place = int(np.argmax(shown))
            if shown[place] > best:
                best, choice = float(shown[place]), (kind, sign, float(thresholds[place]))
    return choice


def _log_ratio(hits: Any, inside: int, alarms: Any, outside: int, delta: float, confidence: float) -> Numbers:
    """The larger of both bounds on ε; it may be negative, or −∞."""
    least_hits, _ = clopper_pearson(hits, inside, confidence)
    _, most_alarms = clopper_pearson(alarms, outside, confidence)
    with np.errstate(divide="ignore"):
        direct = np.log(np.maximum(least_hits - delta, 0) / most_alarms)
        mirrored = np.log(np.maximum(1 - most_alarms - delta, 0) / (1 - least_hits))
    return np.asarray(np.maximum(direct, mirrored))


def clopper_pearson(count: Any, of: int, confidence: float) -> tuple[Numbers, Numbers]:
    """Exact limits on a chance that came true `count` times in `of`; each fails with (1 − confidence)/2."""
    from scipy.stats import beta

    count, tail = np.asarray(count, dtype=float), (1 - confidence) / 2
    low = np.where(count > 0, beta.ppf(tail, np.maximum(count, 1), of - count + 1), 0.0)
    high = np.where(count < of, beta.ppf(1 - tail, count + 1, np.maximum(of - count, 1)), 1.0)
    return low, high
