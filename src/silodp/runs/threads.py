"""How many threads PyTorch takes: sums of floating-point numbers depend on how they are divided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """With so many of them, as an experiment's `threads` says; None: as many as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
