"""Limits on files from others: their type, and the size that they decode to, checked before allocation.

A file of a few kilobytes can declare, or decompress to, more than a machine's memory. A file may decode to
2^28 numbers (1024 slices of 512 × 512), or to 16 for each byte on disk if that is more.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from silodp.cohorts.catalogue import Unreadable

NUMBERS = 2**28
EXPANSION = 16
LEADS_OUT = "it is a link out of the cohort's folder; put the file itself there"
NO_FILE = "it is a pipe, a socket or a device, not a file"


def refuse_special(path: Path, root: Path | None = None) -> None:
    """Refuses special files, sparse files, and files whose links lead out of the root."""
    if root is not None and not is_below(os.path.realpath(path), os.path.realpath(root)):
        raise Unreadable(LEADS_OUT)
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable(NO_FILE)
    if found.st_size > 8 * most_numbers(found):
        raise Unreadable(f"it takes {found.st_size:,} bytes, and is a sparse file")


def is_below(path: str, root: str) -> bool:
    """Whether a real path is the root or lies in it."""
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def refuse_larger(path: Path, shape: Iterable[int]) -> None:
    """Refuses an array of this shape from a file that is too small for it, or that holds no number at all."""
    lengths = tuple(shape)
    if any(length < 1 for length in lengths):
        raise Unreadable(f"it declares {times(lengths)} numbers")
    if math.prod(lengths) > (most := most_numbers(path.stat())):
        raise Unreadable(
            f"it declares {times(lengths)} numbers; at most {most:,} are allowed for a file of its size"
        )


def most_numbers(found: os.stat_result) -> int:
    """How many numbers a file may decode to."""
    return max(NUMBERS, EXPANSION * min(found.st_size, 512 * found.st_blocks))


def times(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape))
