"""Decoding a catalogue's scans on all cores, in their order; what cannot be read becomes a problem."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from silodp.cohorts.catalogue import Catalogue, Problem, Scan, Unreadable, at_fault, why_unreadable
from silodp.cohorts.kinds import FileCohort
from silodp.cohorts.shaping import Shaped, shape
from silodp.cohorts.sources.limits import refuse_special
from silodp.files import sha256


def decoded(
    catalogue: Catalogue, settings: FileCohort
) -> Iterator[tuple[Scan, Shaped | Problem, dict[str, str]]]:
    """Yields every scan with its images, or what is wrong with it, and the hashes of its files by path.

    A few more scans than there are cores are being decoded at a time.
    """
    cores = os.cpu_count() or 1
    scans = iter(catalogue.scans)
    decode = partial(_decode, catalogue, settings)
    with ThreadPoolExecutor(cores) as pool:
        waiting: deque[Future[Any]] = deque(pool.submit(decode, scan) for scan in islice(scans, 4 * cores))
        try:
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(decode, scan) for scan in islice(scans, 1))
        finally:
            for future in waiting:
                future.cancel()


def _decode(
    catalogue: Catalogue, settings: FileCohort, scan: Scan
) -> tuple[Scan, Shaped | Problem, dict[str, str]]:
    hashes: dict[str, str] = {}
    try:
        for number, path in enumerate(scan.files):
            with at_fault(path) if number else contextlib.nullcontext():
                refuse_special(path, catalogue.root)
                hashes[str(path)] = sha256(path)
        return scan, shape(catalogue.read(scan), settings), hashes
    except Exception as error:
        fault = error.file if isinstance(error, Unreadable) else None
        name = scan.name if fault is None else below(fault, catalogue.root)
        return scan, Problem(name, why_unreadable(error)), hashes


def can_now_be_read(problems: Sequence[Problem], catalogue: Catalogue, settings: FileCohort) -> bool:
    """Whether a file with one of these problems can be read now, such as with a decoder installed since."""
    named = {problem.name for problem in problems} - {problem.name for problem in catalogue.problems}
    failed = [
        scan
        for scan in catalogue.scans
        if not named.isdisjoint([scan.name, *(below(path, catalogue.root) for path in scan.files[1:])])
    ]
    return any(
        isinstance(found := _decode(catalogue, settings, scan)[1], Shaped) and found.rows for scan in failed
    )


def below(path: Path, root: Path) -> str:
    """A file's path below the root; its name where it lies elsewhere."""
    whole, folder = str(path), f"{root}/"
    if whole.startswith(folder):  # of very many files, a path's own functions take seconds
        return whole[len(folder) :]
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
