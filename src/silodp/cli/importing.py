"""Imports of what takes seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from silodp.garbage import no_search_for_garbage


@contextmanager
def importing() -> Iterator[None]:
    """Around imports of PyTorch and what needs it: all that they make stays, so none of it is garbage.

    Without this, Python looks through a million objects again and again, a tenth of the time, and while
    it trains.
    """
    with no_search_for_garbage():
        yield
        gc.freeze()
