"""Scaling an update to the clip bound: the Δ / max(‖Δ‖/C, 1) of Eq. 1, as a factor times the update.

Guarantee: what is added to a sum has norm C at most, rounding in single precision included.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from silodp.local.blocks import BLOCK, blocks

ROUNDING = 1 - 1e-6
"""Scaled updates end this much below C, so that single-precision rounding cannot lift them above it."""

SMALLEST = 1e-30
"""Single precision ends below this factor and above its inverse; an update that needs one counts as zero."""


def norm(update: Tensor) -> Tensor:
    """(…) float64 L2 norms of (…, d) vectors, summed in double precision: the sensitivity rests on it."""
    if update.device.type != "cpu" or update.shape[-1] <= BLOCK:
        return torch.linalg.vector_norm(update, dim=-1, dtype=torch.float64)  # type: ignore[no-any-return]
    if update.ndim > 1:
        return torch.stack([norm(one) for one in update])
    total = torch.zeros((), dtype=torch.float64)
    for (part,) in blocks(update):
        exact = part.double()
        total += torch.dot(exact, exact)
    return total.sqrt_()


def add_clipped(total: Tensor, update: Tensor, factor: Tensor) -> None:
    """Adds `factor` times the update to `total`, in place; a factor of 0 adds nothing even to NaN.

    Several are added one after the other, which is what the sensitivity counts rounding for.

    Args:
        total: (d,) float32, the sum so far; changed in place.
        update: (d,) float32, or (k, d) several; may be overwritten.
        factor: () or (k,), on the update's device.
    """
    updates, factors = update.view(-1, len(total)), factor.view(-1)
    if update.device.type != "cpu":  # without looking at the factor, which would wait for the device
        for one, scale in zip(updates.nan_to_num_(0.0, 0.0, 0.0), factors.to(update.dtype), strict=True):
            total.addcmul_(one, scale)
        return
    for one, number in zip(updates, factors.tolist(), strict=True):
        if number:
            total.add_(one, alpha=number)


def clip_factor(norms: Tensor, bound: float) -> Tensor:
    """Factors that bring updates of these norms to at most `bound`: 1 where they already are.

    An infinite or NaN norm gives 0, whatever the bound.
    """
    return torch.where((norms <= bound) & (norms < math.inf), 1.0, scale_factor(norms, bound))


def scale_factor(norms: Tensor, bound: float) -> Tensor:
    """Factors that bring updates of these norms to just below `bound`; 0 for a norm of 0, infinity or NaN."""
    factor = (ROUNDING * bound / norms).nan_to_num_(0.0, 0.0, 0.0)
    return torch.where((factor < SMALLEST) | (factor > 1 / SMALLEST), 0.0, factor)
