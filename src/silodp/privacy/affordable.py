"""What a number of hospitals can learn together at a given ε: the law of signal over noise.

With everyone in every round and updates that agree, T rounds move the model by T·C, and their noise by
√T·z·C·√d/N in norm. Signal over noise is √T·N/(z·√d) = μN/√d with μ = √T/z, which ε and δ fix: it does not
depend on T. What is left to choose is d, how many numbers train.
"""

from __future__ import annotations

import math

from silodp.privacy.gaussian import gaussian_mu


def signal_over_noise(epsilon: float, delta: float, hospitals: int, numbers: int) -> float:
    """μN/√d of a whole run, for ε of a hospital, add-or-remove."""
    return gaussian_mu(epsilon, delta) * hospitals / math.sqrt(numbers)


def most_numbers(epsilon: float, delta: float, hospitals: int, ratio: float = 1.0) -> int:
    """The largest d whose signal over noise is at least `ratio`."""
    return int((gaussian_mu(epsilon, delta) * hospitals / ratio) ** 2)


def noise_in_bounds(noise_multiplier: float, hospitals: int, numbers: int) -> float:
    """The norm of one round's noise on the mean, in units of C: z·√d/N."""
    return noise_multiplier * math.sqrt(numbers) / hospitals
