"""Scaling an update to the clip bound."""

from __future__ import annotations

import torch
from torch import Tensor

from silodp.local.blocks import blocks

ROUNDING = 1 - 1e-6
"""Scaled updates end this much below C, so that single-precision rounding cannot lift them above it."""

SMALLEST = 1e-30
"""A factor below this would lose its digits in single precision; so huge an update is not worth keeping."""


def norm(update: Tensor) -> Tensor:
    """L2 norm, summed in double precision: the guarantee rests on it."""
    if update.device.type != "cpu":
        return torch.linalg.vector_norm(update, dtype=torch.float64)  # type: ignore[no-any-return]
    total = torch.zeros((), dtype=torch.float64)
    for (part,) in blocks(update):
        exact = part.double()
        total += torch.dot(exact, exact)
    return total.sqrt_()


def add_clipped(total: Tensor, update: Tensor, factor: Tensor) -> None:
    """Adds `factor` times the update to `total`, in place; nothing where the factor is 0, also of NaN.

    Args:
        total: (d,) the sum so far.
        update: (d,); it may be overwritten.
        factor: of the update, on its device.
    """
    if update.device.type != "cpu":  # nothing waits for the device: whether the factor is 0 is not looked at
        total.addcmul_(update.nan_to_num_(0.0, 0.0, 0.0), factor.to(update.dtype))
    elif float(factor):
        total.add_(update, alpha=float(factor))


def clip_factor(norms: Tensor, bound: float) -> Tensor:
    """What to multiply updates by so that their norm is at most `bound`: 1 where it already is."""
    factor = scale_factor(norms, bound)
    return torch.where(norms <= bound, 1.0, factor)


def scale_factor(norms: Tensor, bound: float) -> Tensor:
    """What to multiply updates by so that their norm is just below `bound`; nothing stays nothing."""
    factor = ROUNDING * bound / norms
    return torch.where((factor < SMALLEST) | (norms == 0), 0.0, factor)
