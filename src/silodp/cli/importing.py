"""Imports of what takes seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from silodp.garbage import no_search_for_garbage


@contextmanager
def importing() -> Iterator[None]:
    """Around imports of PyTorch and what needs it, whose objects all stay: the garbage collector skips them.

    Otherwise it scans a million objects again and again, for a tenth of the time and during training, too.
    """
    with no_search_for_garbage():
        yield
        gc.freeze()
