"""Sums and noise on a lattice, so that floating-point arithmetic leaks nothing.

A Gaussian number computed in floating point has gaps, and the gaps of x + noise depend on x: they can give
x away (Mironov 2012; Jin et al. 2022 for Gaussian noise). Here each hospital's sum is rounded to whole
multiples of a power of two, the noise likewise, and whole numbers are added exactly: every release lies on
the same lattice whatever it hides. As round(x + noise) = x + round(noise) for x on the lattice, rounding the
noise is post-processing of the ideal mechanism and costs no privacy. Rounding the sums moves them a
little: `sensitivity` counts that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FINENESS = 2.0**-20
"""Rounding to the lattice moves a sum by at most this fraction of the clip bound."""

SINGLE = 2.0**-24
"""Largest relative error of one operation in single precision (unit roundoff)."""


def spacing(clip_bound: float, size: int) -> float:
    """The distance of neighbouring lattice points: a power of two, so that multiplying by it is exact.

    Rounding each of `size` coordinates moves a vector by less than FINENESS·C.
    """
    _, exponent = math.frexp(clip_bound * FINENESS / math.sqrt(size))  # log2 would round up just below one
    return math.ldexp(1.0, exponent - 1)


def sensitivity(clip_bound: float, intermediaries: int) -> float:
    """The most that one intermediary can move the sum on the lattice: C and what rounding adds to it.

    Besides the lattice there is single precision: a hospital adds its v clipped updates, and without the
    intermediary each of these additions may round differently, by at most SINGLE·v·C in either sum.
    """
    return clip_bound * (1 + FINENESS + 2 * SINGLE * intermediaries**2)


def longest_sum(clip_bound: float, intermediaries: int) -> float:
    """The largest norm that the sum of a hospital's v clipped updates can have on the lattice."""
    return intermediaries * sensitivity(clip_bound, intermediaries)


def to_lattice(vector: Tensor, distance: float) -> Tensor:
    """Rounds to the nearest lattice points, as whole numbers of `distance` in float64 (exact up to 2^53)."""
    return put_on_lattice(vector, distance, torch.empty_like(vector, dtype=torch.float64))


def put_on_lattice(vector: Tensor, distance: float, into: Tensor) -> Tensor:
    """`to_lattice` without new memory: overwrites and returns `into`, float64 of the vector's shape."""
    return into.copy_(vector).div_(distance).round_()
