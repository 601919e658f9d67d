"""Sketches of updates (count sketch), for cosines between updates without keeping them.

Each coordinate gets a fixed random sign; coordinate i is added to bucket i mod k. Inner products of sketches
are unbiased estimates of those of the vectors, with a standard error of about 1/√k of the product of their
norms (1.1 % here), and exact for vectors of at most k coordinates.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from silodp.noise.streams import generator

BUCKETS = 2**13


@lru_cache(maxsize=1)
def signs(size: int, device: torch.device) -> Tensor:
    """(size,) float32 fixed random signs on `device`, the same for every hospital and the server.

    Whoever asks shares one tensor; do not change it.
    """
    return torch.empty(size, device=device).bernoulli_(generator=generator(device, 0, "sketch")) * 2 - 1


def sketch(vector: Tensor) -> Tensor:
    """(…, k) float32 sums of signed coordinates of (…, d) vectors, k = `BUCKETS`; (…, d) where d < k."""
    fixed = signs(vector.shape[-1], vector.device)
    whole = len(fixed) // BUCKETS * BUCKETS
    rest = vector[..., whole:] * fixed[whole:]
    if not whole:
        return rest
    sums = (vector[..., :whole] * fixed[:whole]).view(*vector.shape[:-1], -1, BUCKETS).sum(-2)
    sums[..., : rest.shape[-1]] += rest
    return sums


def cosines(sketches: Tensor, total: Tensor) -> Tensor:
    """(v,) cosine of each row of (v, k) `sketches` with the (k,) sketch `total`; 0 where either is zero."""
    rows = sketches.float()
    lengths = rows.norm(dim=1) * total.norm()
    return (rows @ total).div_(lengths.clamp(min=1e-30))
