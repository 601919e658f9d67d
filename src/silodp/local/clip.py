"""Scaling an update to the clip bound."""

from __future__ import annotations

import torch
from torch import Tensor

from silodp.local.blocks import blocks

ROUNDING = 1 - 1e-6
"""Scaled updates end this much below C, so that single-precision rounding cannot lift them above it."""

SMALLEST = 1e-30
"""A smaller factor would lose its digits in single precision; such a huge update counts as zero."""


def norm(update: Tensor) -> Tensor:
    """() float64 L2 norm of a (d,) vector, summed in double precision: the sensitivity rests on it."""
    if update.device.type != "cpu":
        return torch.linalg.vector_norm(update, dtype=torch.float64)  # type: ignore[no-any-return]
    total = torch.zeros((), dtype=torch.float64)
    for (part,) in blocks(update):
        exact = part.double()
        total += torch.dot(exact, exact)
    return total.sqrt_()


def add_clipped(total: Tensor, update: Tensor, factor: Tensor) -> None:
    """Adds `factor` times the update to `total`, in place; a factor of 0 adds nothing even to NaN.

    Args:
        total: (d,) float32, the sum so far; changed in place.
        update: (d,) float32; may be overwritten.
        factor: () on the update's device.
    """
    if update.device.type != "cpu":  # without looking at the factor, which would wait for the device
        total.addcmul_(update.nan_to_num_(0.0, 0.0, 0.0), factor.to(update.dtype))
    elif float(factor):
        total.add_(update, alpha=float(factor))


def clip_factor(norms: Tensor, bound: float) -> Tensor:
    """Factors that bring updates of these norms to at most `bound`: 1 where they already are."""
    factor = scale_factor(norms, bound)
    return torch.where(norms <= bound, 1.0, factor)


def scale_factor(norms: Tensor, bound: float) -> Tensor:
    """Factors that bring updates of these norms to just below `bound`; 0 for a norm of 0."""
    factor = ROUNDING * bound / norms
    return torch.where((factor < SMALLEST) | (norms == 0), 0.0, factor)
