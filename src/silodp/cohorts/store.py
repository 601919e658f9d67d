"""A store: a folder with all decoded images of a cohort, memory-mapped.

    store.json     rows, classes, the hash of every file it was made from, what could not be used
    images.bin     (n, channels, height, width), bytes or half precision
    targets.bin    (n,) classes or (n, masks, height, width)

The cache is a folder of such stores, each named by a hash of its files' content and of the settings that
decide the form of its images. `seen/` maps files, by size and time of change, to a store, so that unchanged
files are not opened.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Catalogue, OnRead, Problem, Row, Scan, Unreadable
from silodp.cohorts.decoding import below, can_now_be_read, decoded
from silodp.cohorts.form import with_form
from silodp.cohorts.kinds import FileCohort
from silodp.cohorts.shaping import Shaped
from silodp.cohorts.sources.limits import refuse_special
from silodp.cohorts.sources.walking import stamp
from silodp.cohorts.store_shape import ArrayShape, read_description
from silodp.errors import InputError
from silodp.files import key_of, read_json, read_plain, sha256, take_lock, write_atomically

FORMAT = 3  # raised when the same files would give other images
# The settings that a store depends on.
DECIDING = {"image_size", "channels", "storage", "mask_labels", "mask_threshold", "with_mask_only", "fit"}
UNFINISHED = {"images.bin", "targets.bin", "store.json.part"}  # left in a store's folder by a kill
ABANDONED = 24 * 3600  # seconds after which an unfinished store is removed


@dataclass(frozen=True)
class Store:
    """An open store; see the module for its files."""

    folder: Path
    kind: str
    layout: str
    target: str
    classes: tuple[str, ...]
    rows: tuple[Row, ...]
    digests: tuple[str, ...]
    files: dict[str, str]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    images: NDArray[Any]
    targets: NDArray[Any]
    mask_values: dict[str, list[float]] = field(default_factory=dict)
    fit: str = "stretch"

    @property
    def labels(self) -> NDArray[np.int64] | None:
        return self.targets if self.target == "class" else None


def cached_store(
    catalogue: Catalogue, settings: FileCohort, cache: Path, on_read: OnRead | None = None
) -> Store:
    """Returns the store of these files, from the cache or decoded into it."""
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)  # these are patients' images
    except OSError as error:
        raise InputError(
            f"cohort.cache = {cache}: cannot be made ({error.strerror}); set it to a folder of yours"
        ) from None
    seen = cache / "seen" / f"{key_of(_facts(catalogue, settings, stamp))}.json"
    try:
        store = open_store(cache / read_json(seen)["store"])
        if not can_now_be_read(store.problems, catalogue, settings):
            return store
    except (OSError, ValueError, KeyError, TypeError):
        pass  # new or damaged
    sweep(cache)
    unfinished = Path(tempfile.mkdtemp(prefix=".part-", dir=cache))
    try:
        hashes = build_store(catalogue, settings, unfinished, on_read)
        name = key_of(_facts(catalogue, settings, lambda path: hashes.get(str(path))))
        _put(unfinished, cache / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    seen.parent.mkdir(exist_ok=True)
    mine = seen.with_suffix(f".{os.getpid()}")  # other processes may write the same now
    mine.write_text(json.dumps({"store": name, "path": str(settings.path or catalogue.root)}))
    mine.replace(seen)
    return open_store(cache / name)


def _put(new: Path, place: Path) -> None:
    """Renames a new store to its place, unless another process has put one there that is as complete."""
    with (place.parent / ".lock").open("w") as lock:
        take_lock(lock)
        try:
            if len(open_store(place).problems) <= len(open_store(new).problems):
                return
        except InputError:
            pass  # damaged, or nothing there
        shutil.rmtree(place, ignore_errors=True)
        new.rename(place)


def build_store(
    catalogue: Catalogue, settings: FileCohort, folder: Path, on_read: OnRead | None = None
) -> dict[str, str]:
    """Decodes every scan into `folder`, in order, on all cores; what cannot be read becomes a problem.

    Returns:
        The hash of every file.
    """
    settings = with_form(catalogue, settings)
    rows: list[Row] = []
    digests: list[str] = []
    problems = list(catalogue.problems)
    hashes = {str(path): sha256(path) for path in catalogue.lists}
    shapes: tuple[Any, Any] | None = None
    values: dict[str, set[float]] = defaultdict(set)
    with (folder / "images.bin").open("wb") as images, (folder / "targets.bin").open("wb") as targets:
        for done, (scan, found, of_files) in enumerate(decoded(catalogue, settings), start=1):
            hashes |= of_files
            if isinstance(found, Problem):
                problems.append(found)
            else:
                problems += found.problems
                if found.rows:
                    shapes = shapes or (found.images, found.targets)
                    if misfit := _misfit(found, *shapes):
                        problems.append(Problem(scan.name, misfit))
                    else:
                        rows += found.rows
                        digests += found.digests
                        for name, mine in _named_values(catalogue, scan, found):
                            values[name] |= mine
                        images.write(np.ascontiguousarray(found.images).data)
                        targets.write(np.ascontiguousarray(found.targets).data)
            if on_read is not None:
                on_read(done, len(catalogue.scans))
    description = {
        "format": FORMAT,
        "kind": catalogue.kind,
        "layout": catalogue.layout,
        "target": catalogue.target,
        "classes": catalogue.classes,
        "images": _array(shapes[0], len(rows)) if shapes else None,
        "targets": _array(shapes[1], len(rows)) if shapes else None,
        "rows": [list(vars(row).values()) for row in rows],
        "digests": digests,
        "files": {below(Path(path), catalogue.root): value for path, value in hashes.items()},
        "problems": [asdict(problem) for problem in problems],
        "notes": catalogue.notes,
        "mask_values": {name: sorted(values[name]) for name in sorted(values)},
        "fit": settings.fit,
    }
    for name in ("images.bin", "targets.bin"):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    write_atomically(folder / "store.json", json.dumps(description).encode())  # last: now it is complete
    return hashes


def open_store(folder: Path) -> Store:
    """Opens a store; its arrays are memory-mapped. InputError where it is damaged."""
    try:
        known = read_description(read_plain(folder / "store.json"), FORMAT)
        images = _mapped(folder, "images", known.images, (0, 1, 1, 1))
        targets = _mapped(folder, "targets", known.targets, (0, 1, 1, 1) if known.target == "mask" else (0,))
        if (
            known.target == "class"
            and len(targets)
            and not 0 <= targets.min() <= targets.max() < len(known.classes)
        ):
            raise Unreadable(f"targets.bin has classes beyond the {len(known.classes)} that it names")
    except (OSError, Unreadable) as error:
        raise InputError(f"{folder}: not a complete store of silodp ({error}); prepare it again") from None
    return Store(
        folder,
        known.kind,
        known.layout,
        known.target,
        tuple(known.classes),
        tuple(Row(*row[:-1], links=tuple(row[-1])) for row in known.rows),
        tuple(known.digests),
        known.files,
        tuple(Problem(**problem) for problem in known.problems),
        tuple(known.notes),
        images,
        targets,
        known.mask_values,
        known.fit,
    )


def _mapped(folder: Path, name: str, known: ArrayShape | None, empty: tuple[int, ...]) -> NDArray[Any]:
    """Maps an array's file, which must have exactly the declared size."""
    if known is None or not known.shape[0]:
        return np.zeros(empty, np.uint8)
    path, wanted = folder / f"{name}.bin", math.prod(known.shape) * np.dtype(known.dtype).itemsize
    refuse_special(path, folder)
    if (size := path.stat().st_size) != wanted:
        raise Unreadable(f"{path.name} has {size:,} bytes, not {wanted:,}")
    return np.memmap(path, known.dtype, mode="r", shape=tuple(known.shape))


def _named_values(catalogue: Catalogue, scan: Scan, found: Shaped) -> Iterator[tuple[str, frozenset[float]]]:
    """Yields the values in a scan's masks, by hospital, and by mask where each has a file."""
    for number, values in enumerate(found.mask_values):
        mask = catalogue.classes[number] if len(found.mask_values) > 1 else None
        yield ", ".join(filter(None, (scan.hospital, mask))), values


def _misfit(found: Shaped, images: NDArray[Any], targets: NDArray[Any]) -> str | None:
    if found.images.shape[1:] != images.shape[1:]:
        theirs, ours = tuple(found.images.shape[1:]), tuple(images.shape[1:])
        return f"it has the shape {theirs}, others {ours}; set cohort.image_size and cohort.channels"
    if found.targets.shape[1:] != targets.shape[1:]:
        return f"it has {found.targets.shape[1]} masks, others {targets.shape[1]}"
    return None


def _facts(catalogue: Catalogue, settings: FileCohort, of_file: Callable[[Path], Any]) -> list[Any]:
    """Everything that the content of a store depends on."""
    return [
        FORMAT,
        catalogue.kind,
        catalogue.layout,
        catalogue.classes,
        [catalogue.notes, list(map(str, catalogue.problems))],
        settings.model_dump(include=DECIDING),
        [[below(path, catalogue.root), of_file(path)] for path in catalogue.lists],
        [
            [
                (scan.name, scan.label, scan.hospital, scan.patient, scan.part),
                [[below(path, catalogue.root), of_file(path)] for path in scan.files],
            ]
            for scan in catalogue.scans
        ],
    ]


def _array(like: NDArray[Any], count: int) -> dict[str, Any]:
    return {"dtype": like.dtype.name, "shape": [count, *like.shape[1:]]}


def sweep(cache: Path) -> None:
    """Removes what killed processes left in a cache, but not what others are decoding now."""
    for left in cache.glob(".part-*"):
        with contextlib.suppress(FileNotFoundError):  # whoever made it may just have finished
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
