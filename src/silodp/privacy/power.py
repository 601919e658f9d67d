"""What an audit could find: how many times too small the noise must be until it notices.

The observer's score is Gaussian, with the same noise in both worlds, which lie μ apart if the noise is what
the ledger says and k·μ apart if it is k times too small. From that, and from how `lower_bound` chooses and
counts, follows the chance of refuting the claim; no federation need be trained for it.
"""

from __future__ import annotations

import math

import numpy as np

from silodp.privacy.lower_bound import choosing, least_mu

POWER = 0.9
"""The statistical power that `detectable` speaks of: the chance of noticing noise that is too small."""


def detectable(mu: float, runs: int, confidence: float, power: float = POWER) -> float | None:
    """The smallest k such that noise k times too small is noticed with this power; None: none is.

    Args:
        mu: what is claimed.
        runs: federations of each kind.
        confidence: of the bound.
        power: chance of finding «broken».
    """
    if math.isinf(_needed(mu, runs, confidence)):
        return None
    low, high = 1.0, 2.0
    while audit_power(mu, high, runs, confidence) < power:
        low, high = high, 2 * high
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        noticed = audit_power(mu, middle, runs, confidence) >= power
        low, high = (low, middle) if noticed else (middle, high)
    return high


def audit_power(mu: float, factor: float, runs: int, confidence: float) -> float:
    """The chance that an audit refutes a claimed μ where the noise is `factor` times too small."""
    from scipy.special import ndtr
    from scipy.stats import binom

    needed, chosen = _needed(mu, runs, confidence), choosing(runs)
    if math.isinf(needed):
        return 0.0
    counted, half = runs - chosen, factor * mu / 2
    hits = np.arange(counted + 1)
    # The threshold strays: a median of n normal numbers has variance π/2n, and this is the mean of two.
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    strays = nodes * math.sqrt(math.pi / 4 / chosen)
    total = 0.0
    for stray, weight in zip(strays, weights / weights.sum(), strict=True):
        found, spared = ndtr(half - stray), ndtr(half + stray)  # chances of a hit, and of no false alarm
        enough = binom.sf(needed - 1 - hits, counted, spared)
        total += weight * float(binom.pmf(hits, counted, found) @ enough)
    return total


def _needed(mu: float, runs: int, confidence: float) -> float:
    """How many guesses must be right to refute μ; infinite where all of them do not."""
    guesses = 2 * (runs - choosing(runs))
    breaks = least_mu(np.arange(guesses + 1), guesses, confidence) > mu
    return int(breaks.argmax()) if breaks.any() else math.inf
