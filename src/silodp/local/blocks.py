"""Passing over long vectors: on a CPU in blocks that stay in its cache, so that memory is read once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**15
"""Numbers: a block in double precision is a quarter of a megabyte."""


def blocks(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of the same places of (d,) vectors, one after the other; on a GPU all places at once."""
    if vectors[0].device.type != "cpu":
        yield vectors
        return
    yield from zip(*(torch.split(vector, BLOCK) for vector in vectors), strict=True)
