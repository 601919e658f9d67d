"""The clip bound C: how an update is scaled to it, and how it moves from round to round."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from silodp.settings import ClippingSettings

MEDIAN_CAP = 25.0
"""The authors' program never lets the median bound exceed this."""

ROUNDING = 1 - 1e-6
"""Scaled updates end this much below C, so that single-precision rounding cannot lift them above it."""


def norm(update: Tensor) -> Tensor:
    """L2 norm, summed in double precision: the guarantee rests on it."""
    return torch.linalg.vector_norm(update, dtype=torch.float64)  # type: ignore[no-any-return]


SMALLEST = 1e-30
"""A factor below this would lose its digits in single precision; so huge an update is not worth keeping."""


def clip_factor(norms: Tensor, bound: float) -> Tensor:
    """What to multiply updates by so that their norm is at most `bound`: 1 where it already is."""
    factor = ROUNDING * bound / norms
    return torch.where(norms <= bound, 1.0, torch.where(factor < SMALLEST, 0.0, factor))


def first_bound(settings: ClippingSettings) -> float | None:
    """C of round one; None where each round's C is the median of its own norms."""
    if settings.rule == "median":
        return None
    return math.inf if settings.rule == "none" else settings.bound


def median_bound(norms: Tensor) -> float:
    """The exact median of this round's norms, as in the authors' program. Not private."""
    return min(float(norms.median()), MEDIAN_CAP)


def next_bound(settings: ClippingSettings, bound: float | None, fraction_below: float | None) -> float | None:
    """C of the next round: C·exp(−η(b̃ − γ)) for the private quantile (Andrew et al. 2021).

    b̃ is the released (noised) fraction of updates with norm ≤ C. More than γ of them below C means
    that C is too large, and it shrinks.
    """
    if settings.rule != "quantile" or bound is None or fraction_below is None:
        return bound
    fraction = min(max(fraction_below, 0.0), 1.0)  # noise can push it out of its range
    return bound * math.exp(-settings.learning_rate * (fraction - settings.quantile))


def share_noise(noise_multiplier: float, bit_share: float) -> tuple[float, float]:
    """Divides one round's privacy between the update and the quantile bits.

    Two Gaussian releases with multipliers z_u and z_b together are one with z, where
    z^-2 = z_u^-2 + z_b^-2. The bits get the share s of z^-2. One bit, centred, moves their sum by ½, so
    the noise on that sum is σ_b = z_b/2, and z_u = (z^-2 − (2σ_b)^-2)^-½ as in Andrew et al.

    Returns:
        (z_u, z_b).
    """
    if noise_multiplier == 0:
        return 0.0, 0.0
    return noise_multiplier / math.sqrt(1 - bit_share), noise_multiplier / math.sqrt(bit_share)
