"""What a person should know of their files before training: `silodp data check`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from silodp.cohorts.catalogue import PARTS, Catalogue, OnRead, Problem, Row
from silodp.cohorts.description import describe
from silodp.cohorts.loading import SOURCES, assemble, look, place_store, read_store
from silodp.cohorts.partition import Placement
from silodp.cohorts.people import codes, people_of, spread
from silodp.cohorts.store import Store
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


def recognise(settings: CohortSettings) -> tuple[CohortSettings, Catalogue | None, list[str]]:
    """What lies at `settings.path`: the first kind whose `scan` finds something there, if none is set.

    Returns:
        The settings with the defaults of their kind; what was found, None where it is prepared; and why a csv
        that lies there was not used.
    """
    path = Path(settings.path or "")
    if not path.exists():
        raise InputError(f"{path}: nothing is there")
    if "kind" in settings.model_fields_set:
        if settings.kind not in (*SOURCES, "prepared"):
            raise InputError(f"cohort.kind = {settings.kind}: it reads no files; choose {', '.join(SOURCES)}")
        kinds: tuple[str, ...] = (settings.kind,)
    elif path.is_file():
        kinds = ("rsna-ich",) if path.suffix.lower() == ".csv" else ("medmnist", "npz")
    else:
        kinds = ("prepared",) if (path / "store.json").exists() else ("rsna-ich", "prostate", "folder")
    found: dict[str, tuple[CohortSettings, Catalogue | None]] = {}
    reasons = []
    for kind in kinds:
        guess = settings.model_copy(update={"kind": kind}).filled()
        try:
            found[kind] = guess, None if kind == "prepared" else look(guess)
            catalogue = found[kind][1]
            if catalogue is None or catalogue.lists or path.is_file():
                break  # lists name their files: nothing else is meant
        except InputError as error:
            if len(kinds) == 1:
                raise
            reasons.append(f"{kind}: {str(error).removeprefix(f'cohort.path = {path}: ')}")
    if not found:
        raise InputError(f"{path}: nothing that silodp knows; tried {'; '.join(reasons)}")
    # Images beside masks are a folder like any other, whatever organ they show.
    folder = found.get("folder", (None, None))[1]
    kind = "folder" if folder is not None and folder.target == "mask" else next(iter(found))
    return *found[kind], [f"not read as {reason}" for reason in reasons if ".csv" in reason]


def inspect(
    settings: CohortSettings, on_read: OnRead | None = None
) -> tuple[Findings, Store, Placement | None]:
    """Reads everything at `settings.path` and looks for what would spoil a training."""
    settings, catalogue, doubts = recognise(settings)
    store = read_store(settings, on_read, catalogue)
    placement, undealt, description = None, None, None
    try:
        placement = place_store(store, settings)
        cohort = assemble(store, placement, pixels=False)
        description = describe(cohort, settings.classes)
        cohort.check(settings.classes)  # what a run would refuse
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
        notes=(*(description["notes"] if description else store.notes), *doubts),
    )
    return findings, store, placement


def _classes(store: Store) -> dict[str, int]:
    if not store.rows:
        return dict.fromkeys(store.classes, 0)
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


def _leaks(rows: Sequence[Row], settings: CohortSettings) -> Iterator[str]:
    """People in more than one place, by the same eyes as the partition that refuses them."""
    if not rows:
        return
    people = people_of(rows, settings)
    for what, places in (
        ("hospitals", [row.hospital for row in rows]),
        ("parts", [row.part for row in rows]),
    ):
        for person in spread(people, codes(places)):
            mine = np.flatnonzero(people == person).tolist()
            name = next((known for index in mine if (known := rows[index].patient)), "of one study")
            found = {places[index] for index in mine}
            named = [part for part in PARTS if part in found] or sorted(map(str, found))
            yield f"patient {name} is in the {what} {', '.join(named)}"
