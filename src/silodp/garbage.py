"""Suspending Python's cyclic garbage collector around work that creates many long-lived objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """Suspends the collector, which would otherwise scan the growing set of objects again and again.

    Objects without cycles are freed as always; those with cycles stay until after the block. Where the
    collector is off already nothing changes, so blocks may contain each other.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
