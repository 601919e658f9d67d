"""Small sketches of large updates, from which cosines are read without keeping the updates.

Signs are random and fixed; coordinate i goes into bucket i mod k. Inner products of sketches are
unbiased estimates of inner products of the vectors, with a standard error of about 1/√k of the
product of their norms (1.1 % here), and exact where the vector has at most k coordinates.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from silodp.noise.streams import generator

BUCKETS = 2**13


@lru_cache(maxsize=1)
def signs(size: int, device: torch.device) -> Tensor:
    """The fixed random signs for vectors of one size: hospitals and server use the same tensor."""
    return torch.empty(size, device=device).bernoulli_(generator=generator(device, 0, "sketch")) * 2 - 1


def sketch(vector: Tensor, signs: Tensor) -> Tensor:
    """(k,) sums of signed coordinates."""
    whole = vector.numel() // BUCKETS * BUCKETS
    rest = vector[whole:] * signs[whole:]
    if not whole:
        return rest
    sums = (vector[:whole] * signs[:whole]).view(-1, BUCKETS).sum(0)
    sums[: rest.numel()] += rest
    return sums


def cosines(sketches: Tensor, total: Tensor) -> Tensor:
    """Cosine of each row with `total`."""
    return torch.nn.functional.cosine_similarity(sketches, total[None], dim=1)
