"""Scaling an update to the clip bound."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1 - 1e-6
"""Scaled updates end this much below C, so that single-precision rounding cannot lift them above it."""

SMALLEST = 1e-30
"""A factor below this would lose its digits in single precision; so huge an update is not worth keeping."""


def norm(update: Tensor) -> Tensor:
    """L2 norm, summed in double precision: the guarantee rests on it."""
    return torch.linalg.vector_norm(update, dtype=torch.float64)  # type: ignore[no-any-return]


def clip_factor(norms: Tensor, bound: float) -> Tensor:
    """What to multiply updates by so that their norm is at most `bound`: 1 where it already is."""
    factor = scale_factor(norms, bound)
    return torch.where(norms <= bound, 1.0, factor)


def scale_factor(norms: Tensor, bound: float) -> Tensor:
    """What to multiply updates by so that their norm is just below `bound`; nothing stays nothing."""
    factor = ROUNDING * bound / norms
    return torch.where((factor < SMALLEST) | (norms == 0), 0.0, factor)
