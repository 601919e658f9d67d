"""The Gaussian mechanism, exactly: δ from ε and back, at any noise.

A Gaussian release with noise multiplier z is 1/z-GDP: no test tells two neighbouring federations apart better
than N(0, 1) from N(μ, 1) with μ = 1/z. Releases compose by μ² = Σ μ_t² (Dong, Roth and Su 2022), so rounds
that differ need no approximation. μ already counts how far the unit at stake moves the sum; for which unit
and relation, `exposure.py` says.

Everything is computed from logarithms, since e^ε overflows at ε = 710 and hospitals' ε go to ten thousands.
SciPy, whose import takes a quarter of a second, is for mixtures only; the rest uses Python's `math`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), exact for a μ-GDP mechanism.

    Theorem 8 of Balle and Wang (2018); 0 for μ = 0, which releases nothing.
    """
    if mu <= 0:
        return 0.0
    log_first = log_normal(-epsilon / mu + mu / 2)
    if log_first == -math.inf:
        return 0.0
    log_second = epsilon + log_normal(-epsilon / mu - mu / 2)
    return math.exp(log_first) * -math.expm1(min(log_second - log_first, 0.0))


def log_normal(x: float) -> float:
    """log Φ(x), to the last digits at any x; SciPy has it as `log_ndtr`."""
    if x > -1:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    if x > -36:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    # Beyond, erfc is less than the smallest number: Φ(x) = φ(x)/|x|·(1 − 1/x² + 3/x⁴ − 15/x⁶ …).
    term, rest = 1.0, 0.0
    for odd in range(1, 15, 2):
        term *= -odd / (x * x)
        rest += term
    return -x * x / 2 - math.log(-x) - math.log(2 * math.pi) / 2 + math.log1p(rest)


@lru_cache(maxsize=4096)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ δ, by bisection: exact at any μ, however large; infinite for μ = ∞.

    Of the two ends of the last interval it is the upper one, at which δ is kept.
    """
    return _smallest_epsilon(lambda epsilon: gaussian_delta(mu, epsilon), mu, delta)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ whose ε at this δ is at most `epsilon`: the inverse of `gaussian_epsilon`.

    For ε ≥ 0 and 0 < δ < 1. A run of T rounds at noise multiplier z has μ = √T/z, so z = √T/μ.
    """
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    return _bisect(lambda mu: gaussian_delta(mu, epsilon) <= delta, low, high)[0]


def mixture_epsilon(rounds: Sequence[tuple[float, int]], rate: float, delta: float) -> float:
    """ε where each round is a Gaussian release with chance `rate` and nothing otherwise, and all see which.

    `rounds` holds (μ² of a round, how many such rounds). Given who took part in which round, μ² is the
    sum over those rounds, so δ(ε) is the mean of the Gaussian δ over that sum's distribution. Where rounds
    differ, each kind's part of the sum is rounded up to a grid: a bound from above.
    """
    if any(math.isinf(square) for square, _ in rounds):
        return math.inf
    squares, chances = _mixture(rounds, rate)
    some = squares > 0  # without any release δ is 0
    mus, chances = np.sqrt(squares[some]), chances[some]
    largest = float(mus.max(initial=0.0))
    return _smallest_epsilon(lambda epsilon: float(chances @ _deltas(mus, epsilon)), largest, delta)


def _mixture(rounds: Sequence[tuple[float, int]], rate: float) -> tuple[Numbers, Numbers]:
    """Values of Σ B_t μ_t² for independent B_t with chance `rate`, in growing order, with their chances."""
    if len(rounds) == 1:
        ((square, count),) = rounds
        return square * np.arange(count + 1, dtype=np.float64), _binomial(count, rate)
    if len(rounds) > 64:  # alike ones together, each as bad as the worst of them
        ordered = sorted(rounds)
        step = math.ceil(len(ordered) / 64)
        parts = [ordered[start : start + step] for start in range(0, len(ordered), step)]
        rounds = [(part[-1][0], sum(count for _, count in part)) for part in parts]
    points = 4096
    unit = sum(square * count for square, count in rounds) / (points - 2 * len(rounds))
    total = np.zeros(points)
    total[0] = 1.0
    for square, count in rounds:
        places = np.ceil(np.arange(count + 1) * (square / unit)).astype(np.int64)
        kind = np.bincount(places, _binomial(count, rate), points)
        size = 2 * points
        product = np.fft.rfft(total, size) * np.fft.rfft(kind, size)
        total = np.fft.irfft(product, size)[:points].clip(min=0)
    return unit * np.arange(points, dtype=np.float64), total / total.sum()


def _binomial(count: int, rate: float) -> Numbers:
    """The chances of 0…count successes."""
    from scipy.special import gammaln, xlogy

    taken = np.arange(count + 1.0)
    ways = math.lgamma(count + 1) - gammaln(taken + 1) - gammaln(count - taken + 1)
    chances: Numbers = np.exp(ways + xlogy(taken, rate) + xlogy(count - taken, 1 - rate))
    return chances


def _deltas(mus: Numbers, epsilon: float) -> Numbers:
    """`gaussian_delta` of many μ > 0."""
    from scipy.special import log_ndtr

    log_first = log_ndtr(-epsilon / mus + mus / 2)
    log_second = epsilon + log_ndtr(-epsilon / mus - mus / 2)
    deltas: Numbers = np.exp(log_first) * -np.expm1((log_second - log_first).clip(max=0.0))
    return deltas


def _smallest_epsilon(delta_of: Callable[[float], float], largest_mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ δ, for a δ(ε) that falls and is at most that of `largest_mu`."""
    if math.isinf(largest_mu):
        return math.inf
    if delta_of(0.0) <= delta:
        return 0.0
    # Φ(−x) ≤ e^(−x²/2), so the first term of δ(ε) alone is at most δ here.
    high = largest_mu * largest_mu / 2 + largest_mu * math.sqrt(2 * math.log(1 / delta))
    return _bisect(lambda epsilon: delta_of(epsilon) > delta, 0.0, high)[1]


def _bisect(holds: Callable[[float], bool], yes: float, no: float) -> tuple[float, float]:
    """Closes in on where `holds` stops holding, from one point where it does and one where it does not."""
    while abs(no - yes) > 1e-12 * max(yes, no):
        middle = (yes + no) / 2
        if middle in (yes, no):
            break
        yes, no = (middle, no) if holds(middle) else (yes, middle)
    return yes, no
