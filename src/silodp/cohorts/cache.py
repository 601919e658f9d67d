"""The cache of decoded images: what is in it, and how to empty it. See `store.py` for its files."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from silodp.cohorts.store import open_store, sweep
from silodp.errors import InputError
from silodp.files import read_json

_STORE = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True)
class Entry:
    """One store in the cache.

    Attributes:
        folder: where it is.
        bytes: that it takes.
        what: how many images, of what shape.
        paths: which cohorts it was decoded for, the ones that are known.
    """

    folder: Path
    bytes: int
    what: str
    paths: tuple[str, ...]


def entries(cache: Path) -> list[Entry]:
    """The stores in a cache, the largest first."""
    paths: dict[str, set[str]] = {}
    for seen in cache.glob("seen/*.json"):
        try:
            said = read_json(seen)
            paths.setdefault(str(said["store"]), set()).add(str(said["path"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged
    found = []
    for folder in cache.glob("*"):
        if _STORE.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            size = sum(path.stat().st_size for path in folder.glob("*"))
            found.append(Entry(folder, size, _what(folder), tuple(sorted(paths.get(folder.name, ())))))
    return sorted(found, key=lambda entry: -entry.bytes)


def clear(cache: Path) -> list[Entry]:
    """Removes every store and what killed processes left; nothing that is being decoded, nor other files."""
    removed = entries(cache)
    for entry in removed:
        shutil.rmtree(entry.folder, ignore_errors=True)
    for remembered in ("seen", "looks"):
        shutil.rmtree(cache / remembered, ignore_errors=True)
    sweep(cache)
    return removed


def _what(folder: Path) -> str:
    try:
        store = open_store(folder)
    except InputError:
        return "unusable: damaged, or of another version"
    channels, height, width = store.images.shape[1:]
    return f"{store.kind}: {len(store.rows):,} images of {height} × {width}, {channels} channels"
