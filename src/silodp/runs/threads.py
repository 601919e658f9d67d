"""The number of PyTorch's threads, on which sums of floating-point numbers depend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Sets the number of threads for the block; None: it stays."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
