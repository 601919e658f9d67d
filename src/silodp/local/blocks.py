"""Iterating over long vectors in blocks that fit a CPU's cache, so that memory is read once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**16
"""Numbers: a block in double precision is half a megabyte. Smaller ones cost more calls than they save."""


def blocks(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields views of corresponding blocks of (d,) vectors; on a GPU the whole vectors at once.

    The vectors may have different dtypes, and lie on one device. Writing to a view writes to its vector.
    """
    if vectors[0].device.type != "cpu":
        yield vectors
        return
    yield from zip(*(torch.split(vector, BLOCK) for vector in vectors), strict=True)
