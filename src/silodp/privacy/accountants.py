"""From events to ε, for a whole hospital and for one intermediary.

The exact accountant: a Gaussian release with multiplier z is 1/z-GDP, and releases compose by
μ² = Σ μ_t² (Dong, Roth and Su 2022), so heterogeneous rounds need no approximation. It claims no
amplification by sampling: with Poisson or fractional participation its ε is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from silodp.privacy.events import Event


@dataclass(frozen=True)
class Epsilon:
    """ε at one δ for add-or-remove neighbours; infinite where something was released without noise."""

    hospital: float
    intermediary: float
    covers_everything: bool = True  # False where unprotected statistics were used beside the releases


def spent(events: Iterable[Event], delta: float) -> Epsilon:
    """ε of all events together, for both units."""
    hospital = intermediary = 0.0
    covered = True
    for event in events:
        if not event.protected:
            covered = False
        elif event.noise_multiplier == 0:
            hospital = intermediary = math.inf
        else:
            hospital += event.hospital_noise_multiplier**-2
            intermediary += event.noise_multiplier**-2
    return Epsilon(
        gaussian_epsilon(math.sqrt(hospital), delta),
        gaussian_epsilon(math.sqrt(intermediary), delta),
        covered,
    )


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), exact for a μ-GDP mechanism (Balle and Wang 2018)."""
    if mu == 0:
        return 0.0
    log_first = _log_normal_cdf(-epsilon / mu + mu / 2)
    log_second = epsilon + _log_normal_cdf(-epsilon / mu - mu / 2)
    return math.exp(log_first) * -math.expm1(min(0.0, log_second - log_first))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ δ, by bisection: exact at any μ, however large."""
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


def _log_normal_cdf(x: float) -> float:
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))
