"""What a person should know of their files before training: `silodp data check`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from silodp.cohorts.catalogue import PARTS, Catalogue, Problem, Row
from silodp.cohorts.description import count
from silodp.cohorts.loading import SOURCES, about, look, members, place_store, read_store
from silodp.cohorts.partition import Placement
from silodp.cohorts.store import OnRead, Store
from silodp.errors import InputError
from silodp.settings import CohortSettings


@dataclass(frozen=True)
class Findings:
    """What was found at a path.

    Attributes:
        settings: with which it can be read.
        description: counts by hospital, part and class, as in cohort.json; None where it cannot be dealt out.
        undealt: why it cannot be dealt out to hospitals and parts, with the way out.
        images: how many can be used.
        sizes: of the images in the files, (height, width), the most frequent first.
        problems: what cannot be used, by name.
        duplicates: names of images with the same pixels, within a hospital (or where none is known).
        duplicates_across: the same, in two hospitals.
        leaks: patients in two hospitals or in two parts, as the files name them.
        notes: what a reader of results should know.
    """

    settings: CohortSettings
    layout: str
    images: int
    classes: dict[str, int]
    sizes: dict[tuple[int, int], int]
    description: dict[str, Any] | None
    undealt: str | None
    problems: tuple[Problem, ...]
    duplicates: tuple[tuple[str, ...], ...]
    duplicates_across: tuple[tuple[str, ...], ...]
    leaks: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return not (self.problems or self.leaks or self.duplicates_across or self.undealt)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.settings.kind,
            "layout": self.layout,
            "images": self.images,
            "classes": self.classes,
            "sizes": {f"{height}x{width}": count for (height, width), count in self.sizes.items()},
            "hospitals": self.description["hospitals"] if self.description else None,
            "position_auc": self.description["position_auc"] if self.description else None,
            "undealt": self.undealt,
            "problems": [str(problem) for problem in self.problems],
            "duplicates": self.duplicates,
            "duplicates_across_hospitals": self.duplicates_across,
            "leaks": self.leaks,
            "notes": self.notes,
            "clean": self.is_clean,
        }


def recognise(settings: CohortSettings) -> tuple[CohortSettings, Catalogue | None]:
    """What lies at `settings.path`: the first kind whose `scan` finds something there, if none is set.

    Returns:
        The settings with the defaults of their kind, and what was found; None where it is prepared.
    """
    path = Path(settings.path or "")
    if not path.exists():
        raise InputError(f"{path}: nothing is there")
    if "kind" in settings.model_fields_set:
        candidates: tuple[str, ...] = (settings.kind,)
    elif path.is_file():
        candidates = ("medmnist", "npz")
    elif (path / "store.json").exists():
        candidates = ("prepared",)
    else:
        candidates = tuple(kind for kind in SOURCES if kind not in ("medmnist", "npz"))
    reasons = []
    for kind in candidates:
        guess = settings.model_copy(update={"kind": kind}).filled()
        if kind == "prepared":
            return guess, None
        try:
            catalogue = look(guess)
            if catalogue.scans or len(candidates) == 1:
                return guess, catalogue
            reasons.append(f"{kind}: no image")
        except InputError as error:
            if len(candidates) == 1:
                raise
            reasons.append(f"{kind}: {str(error).removeprefix(f'cohort.path = {path}: ')}")
    raise InputError(f"{path}: nothing that silodp knows; tried {'; '.join(reasons)}")


def inspect(
    settings: CohortSettings, on_read: OnRead | None = None
) -> tuple[Findings, Store, Placement | None]:
    """Reads everything at `settings.path` and looks for what would spoil a training."""
    settings, catalogue = recognise(settings)
    store = read_store(settings, on_read, catalogue)
    placement, undealt, description = None, None, None
    try:
        placement = place_store(store, settings)
        targets = {
            hospital: {part: torch.from_numpy(store.targets[mine]) for part, mine in parts.items()}
            for hospital, parts in members(placement).items()
        }
        description = {**about(store, placement), "hospitals": count(targets, list(store.classes))}
    except InputError as error:
        undealt = str(error)
    same, across = _duplicates(store, placement)
    findings = Findings(
        settings=settings,
        layout=store.layout,
        images=len(store.rows),
        classes=_classes(store),
        sizes=dict(Counter(row.size for row in store.rows).most_common()),
        description=description,
        undealt=undealt,
        problems=store.problems,
        duplicates=same,
        duplicates_across=across,
        leaks=tuple(_leaks(store.rows, settings)),
        notes=tuple(description["notes"]) if description else store.notes,
    )
    return findings, store, placement


def _classes(store: Store) -> dict[str, int]:
    if store.labels is None:
        found = store.targets.reshape(*store.targets.shape[:2], -1).any(2).sum(0)
        return {name: int(found[number]) for number, name in enumerate(store.classes)}
    return {name: int((store.labels == number).sum()) for number, name in enumerate(store.classes)}


def _duplicates(store: Store, placement: Placement | None) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Groups of images with the same pixels: those within one hospital, and those across hospitals."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, digest in enumerate(store.digests):
        groups[digest].append(number)
    within: list[tuple[str, ...]] = []
    across: list[tuple[str, ...]] = []
    for numbers in groups.values():
        if len(numbers) > 1:
            places = {
                store.rows[number].hospital if placement is None else int(placement.hospital[number])
                for number in numbers
            }
            names = tuple(store.rows[number].name for number in numbers)
            (within if len(places) == 1 else across).append(names)
    return tuple(within), tuple(across)


def _leaks(rows: Iterable[Row], settings: CohortSettings) -> Iterable[str]:
    hospitals, parts = defaultdict(set), defaultdict(set)
    for row in rows:
        if row.patient is not None:
            local = settings.patient_ids == "local"
            patient = f"{row.hospital}/{row.patient}" if local and row.hospital else row.patient
            hospitals[patient].add(row.hospital)
            parts[patient].add(row.part)
    for patient, found in hospitals.items():
        if len(found) > 1:
            yield f"patient {patient} is in the hospitals {', '.join(sorted(map(str, found)))}"
    for patient, found in parts.items():
        if len(found) > 1:
            yield f"patient {patient} is in the parts {', '.join(part for part in PARTS if part in found)}"
