"""The results of scanning very many files, cached: of RSNA-ICH a scan takes half a minute.

A kind may say what its `scan` depends on (`FileCohort.decided_by`): names, and the sizes and times of the
lists that it reads. As long as these and its own settings are the same, the cached result is used. Whether an
image was changed is checked by `store.py`, by its size and times.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from silodp import __version__
from silodp.cohorts.catalogue import Catalogue, Problem, Scan
from silodp.cohorts.decoding import below
from silodp.cohorts.kinds import FileCohort
from silodp.errors import InputError
from silodp.files import key_of, private_folder, read_json, write_atomically

FORMAT = 1  # raised when the same names and lists would give another catalogue


def cached_scan(settings: FileCohort, cache: Path, look: Callable[[], Catalogue]) -> Catalogue:
    """Returns what `look` finds, from the cache if nothing that it depends on has changed."""
    decided_by = settings.decided_by(settings.root)
    if decided_by is None:
        return look()
    folder = settings.root if settings.root.is_dir() else settings.root.parent
    asked = settings.model_dump(mode="json", exclude=FileCohort.model_fields.keys() - {"kind", "seed"})
    place = cache / "looks" / f"{key_of([str(settings.root.absolute()), asked])}.json"
    key = key_of([FORMAT, __version__, decided_by])
    try:
        found = read_json(place)
        if found["decided_by"] == key:
            return _catalogue(found, settings, folder)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # new, or damaged
    catalogue = look()
    with suppress(OSError, InputError):  # decoding into the cache reports what is wrong with it
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        private_folder(place.parent)
        write_atomically(place, json.dumps(_as_dict(catalogue, key)).encode())
    return catalogue


def _as_dict(catalogue: Catalogue, key: str) -> dict[str, Any]:
    root = catalogue.root
    return {
        "decided_by": key,
        "layout": catalogue.layout,
        "target": catalogue.target,
        "classes": catalogue.classes,
        "scans": [
            [
                scan.name, [below(file, root) for file in scan.files], scan.label,
                scan.hospital, scan.patient, scan.part, scan.stratum,
            ]
            for scan in catalogue.scans
        ],
        "problems": [(problem.name, problem.what) for problem in catalogue.problems],
        "notes": catalogue.notes,
        "lists": [below(file, root) for file in catalogue.lists],
    }  # fmt: skip


def _catalogue(found: dict[str, Any], settings: FileCohort, root: Path) -> Catalogue:
    return Catalogue(
        settings.kind,
        root,
        found["layout"],
        found["target"],
        tuple(found["classes"]),
        tuple(
            Scan(name, tuple(root / file for file in files), *more) for name, files, *more in found["scans"]
        ),
        settings.reader(),
        tuple(Problem(*problem) for problem in found["problems"]),
        tuple(found["notes"]),
        tuple(root / file for file in found["lists"]),
    )
