"""Checks of files before training: `silodp data check`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from silodp.cohorts.catalogue import PARTS, Catalogue, OnRead, Problem, Row
from silodp.cohorts.description import counts_of, describe
from silodp.cohorts.kinds import CohortSettings, FileCohort, MaskSettings, PreparedCohort, StoredCohort
from silodp.cohorts.loading import UnfitFile, assemble, look, place_store, read_store
from silodp.cohorts.mask_values import Doubt, doubt_of
from silodp.cohorts.partition import Placement
from silodp.cohorts.people import codes, people_of, spread
from silodp.cohorts.sources.walking import one_walk
from silodp.cohorts.store import Store
from silodp.errors import InputError
from silodp.garbage import no_search_for_garbage

SIMULATED = (6, 5, 4, 3, 2)  # hospitals to try, the paper's number first
ENOUGH = 4  # training images of each, so that a hospital can be split


@dataclass(frozen=True)
class Findings:
    """What was found at a path.

    Attributes:
        settings: to read it with; where neither files nor settings name hospitals, with a possible number.
        target: "class" or "mask".
        description: counts by hospital, part and class, as in cohort.json; None where `undealt`.
        undealt: why images cannot be assigned to hospitals and parts, and what to do.
        images: how many can be used.
        sizes: of the images in the files, (height, width), the most frequent first.
        shape: (channels, height, width) of the images as they are kept.
        stored: bytes in the cache.
        mask_values: values in masks, by hospital as the files name it.
        mask_areas: the mean share of an image that a mask covers, by hospital and mask.
        doubt: why the meaning of masks is ambiguous, and the settings that resolve it.
        problems: what cannot be used, by name.
        duplicates: names of images with the same pixels, within a hospital (or where none is known).
        duplicates_across: the same, in two hospitals.
        leaks: patients in two hospitals or in two parts, as the files name them.
        notes: for readers of results.
    """

    settings: StoredCohort
    layout: str
    target: str
    images: int
    classes: dict[str, int]
    sizes: dict[tuple[int, int], int]
    shape: tuple[int, ...]
    stored: int
    mask_values: dict[str, list[float]]
    mask_areas: dict[str, dict[str, float]]
    doubt: Doubt | None
    description: dict[str, Any] | None
    undealt: str | None
    problems: tuple[Problem, ...]
    duplicates: tuple[tuple[str, ...], ...]
    duplicates_across: tuple[tuple[str, ...], ...]
    leaks: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether it can be trained on with these settings."""
        problems = self.problems and not self.skips
        return not (problems or self.leaks or self.duplicates_across or self.undealt or self.doubt)

    @property
    def skips(self) -> bool:
        """Whether files that cannot be used are left out."""
        return not isinstance(self.settings, FileCohort) or self.settings.skip_unreadable

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.settings.kind,
            "layout": self.layout,
            "images": self.images,
            "classes": self.classes,
            "sizes": {f"{height}x{width}": count for (height, width), count in self.sizes.items()},
            "hospitals": self.description["hospitals"] if self.description else None,
            "position_auc": self.description["position_auc"] if self.description else None,
            "read_as": list(self.shape),
            "mask_values": self.mask_values,
            "mask_areas": self.mask_areas,
            "doubt": self.doubt.sentence if self.doubt else None,
            "undealt": self.undealt,
            "problems": [str(problem) for problem in self.problems],
            "duplicates": self.duplicates,
            "duplicates_across_hospitals": self.duplicates_across,
            "leaks": self.leaks,
            "notes": self.notes,
            "clean": self.is_clean,
        }


@one_walk()
def recognise(
    given: Mapping[str, Any], usual: Mapping[str, Any] | None = None
) -> tuple[StoredCohort, Catalogue | None, list[str]]:
    """Finds the kind of files at `given["path"]`: the first whose `scan` succeeds, unless one is named.

    Args:
        given: settings of the section `cohort`, with a path.
        usual: defaults, for kinds that have these settings.

    Returns:
        The settings; the catalogue, None for a prepared cohort; and why a csv file there was not used.
    """
    path = Path(given["path"])
    if not path.exists():
        raise InputError(f"{path}: nothing is there")
    found: dict[str, tuple[StoredCohort, Catalogue | None]] = {}
    reasons: dict[str, InputError] = {}
    for settings in _candidates(given, path, usual or {}):
        try:
            catalogue = look(settings) if isinstance(settings, FileCohort) else None
            found[settings.kind] = settings, catalogue
            if catalogue is None or catalogue.lists or path.is_file():
                break  # lists name their files, so no other kind is meant
        except UnfitFile:
            raise  # it is of this kind
        except InputError as error:
            reasons[settings.kind] = error
    if not found:
        texts = {str(error) for error in reasons.values()}
        if len(texts) == 1:
            raise next(iter(reasons.values()))
        said = (
            f"{kind}: {str(error).removeprefix(f'cohort.path = {path}: ')}" for kind, error in reasons.items()
        )
        raise InputError(f"{path}: nothing that silodp knows; tried {'; '.join(said)}")
    # Images beside masks are a plain folder, whatever organ they show.
    folder = found.get("folder", (None, None))[1]
    chosen = "folder" if folder is not None and folder.target == "mask" else next(iter(found))
    settings, catalogue = found[chosen]
    used = catalogue is not None and catalogue.lists
    doubts = [f"not read as {kind}: {error}" for kind, error in reasons.items() if ".csv" in str(error)]
    return settings, catalogue, [] if used else doubts


def _candidates(given: Mapping[str, Any], path: Path, usual: Mapping[str, Any]) -> list[StoredCohort]:
    """The kinds that could read this path, or the one that is named, with the settings given."""
    known = [kind for kind in CohortSettings.known.values() if issubclass(kind, StoredCohort)]
    kinds: list[type[StoredCohort]] = []
    if "kind" in given:
        kinds = [kind for kind in known if kind.name() == CohortSettings.of(kind=given["kind"]).kind]
        if not kinds:
            names = ", ".join(kind.name() for kind in known)
            raise InputError(f"cohort.kind = {given['kind']}: it reads no files; choose {names}")
    elif (path / "store.json").exists():
        kinds = [PreparedCohort]
    else:
        form = path.suffix.lower() if path.is_file() else "folder"
        files = sorted(
            (kind for kind in known if issubclass(kind, FileCohort)), key=lambda kind: kind.general
        )
        kinds = [kind for kind in files if form in kind.takes]
        kinds = kinds or [kind for kind in files if kind.takes != ("folder",)]
    candidates = []
    for kind in kinds:
        try:
            own = {name: value for name, value in usual.items() if name in kind.model_fields}
            candidates.append(kind.given({**own, **given, "kind": kind.name()}))
        except InputError:
            if kind is kinds[-1] and not candidates:
                raise  # no kind has such settings
    return candidates


@no_search_for_garbage()
def inspect(
    given: Mapping[str, Any], on_read: OnRead | None = None
) -> tuple[Findings, Store, Placement | None]:
    """Reads all files at `given["path"]` and looks for what would spoil training."""
    settings, catalogue, doubts = recognise(given)
    store = read_store(settings, on_read, catalogue)
    told = settings.hospitals
    settings, placement, description, undealt = _dealt(store, settings)
    notes = list(description["notes"] if description else store.notes)
    if settings.hospitals != told:
        notes.append(
            f"the files name no hospital: {settings.hospitals} are simulated; change that with --set "
            "hospitals=…"
        )
    same, across = _duplicates(store, placement)
    findings = Findings(
        settings=settings,
        layout=store.layout,
        target=store.target,
        images=len(store.rows),
        classes=counts_of(store.targets, store.classes),
        sizes=dict(Counter(row.size for row in store.rows).most_common()),
        shape=tuple(store.images.shape[1:]),
        stored=store.images.nbytes + store.targets.nbytes,
        mask_values=store.mask_values,
        mask_areas=_areas(store, placement),
        doubt=doubt_of(store.mask_values, settings) if isinstance(settings, MaskSettings) else None,
        description=description,
        undealt=undealt,
        problems=store.problems,
        duplicates=same,
        duplicates_across=across,
        leaks=tuple(_leaks(store.rows, settings)),
        notes=(*notes, *_enlarged(store), *doubts),
    )
    return findings, store, placement


def _dealt(
    store: Store, settings: StoredCohort
) -> tuple[StoredCohort, Placement | None, dict[str, Any] | None, str | None]:
    """Assigns images, trying several numbers of hospitals where none is set; or says why not."""
    tries = [settings]
    usual = CohortSettings.of(kind=store.kind).hospitals
    nameless = all(row.hospital is None for row in store.rows)
    if (settings.hospitals, settings.partition, usual) == (None, None, None) and nameless and store.rows:
        tries = [settings.model_copy(update={"hospitals": count}) for count in SIMULATED]
    undealt = ""
    for tried in tries:
        placement, description = None, None
        try:
            placement = place_store(store, tried)
            cohort = assemble(store, placement, pixels=False)
            description = describe(cohort, tried.classes)
            cohort.check(tried.classes)  # what a run would refuse
            fewest = min(len(hospital.train) for hospital in cohort.hospitals)
            if tried is not tries[-1] and fewest < ENOUGH:
                continue
            return tried, placement, description, None
        except InputError as error:
            undealt = str(error)  # of the fewest hospitals: it says most of the files
    return (settings if len(tries) > 1 else tries[0]), placement, description, undealt


def _areas(store: Store, placement: Placement | None) -> dict[str, dict[str, float]]:
    if placement is None or store.target != "mask":
        return {}
    shares = store.targets.reshape(*store.targets.shape[:2], -1).mean(2)
    return {
        hospital: dict(zip(store.classes, shares[placement.hospital == number].mean(0).tolist(), strict=True))
        for number, hospital in enumerate(placement.hospitals)
    }


def _enlarged(store: Store) -> list[str]:
    height, width = store.images.shape[-2:]
    small = sum(row.size[0] < height and row.size[1] < width for row in store.rows)
    if not small:
        return []
    return [f"{small:,} images are enlarged to {height} × {width}; cohort.image_size makes that smaller"]


def _duplicates(store: Store, placement: Placement | None) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Groups of images with the same pixels: those within one hospital, and those across hospitals."""
    groups: dict[str, list[tuple[Row, object]]] = defaultdict(list)
    hospitals = [row.hospital for row in store.rows] if placement is None else placement.hospital.tolist()
    for digest, row, hospital in zip(store.digests, store.rows, hospitals, strict=True):
        groups[digest].append((row, hospital))
    within: list[tuple[str, ...]] = []
    across: list[tuple[str, ...]] = []
    for same in groups.values():
        if len(same) > 1:
            one_hospital = len({hospital for _, hospital in same}) == 1
            (within if one_hospital else across).append(tuple(row.name for row, _ in same))
    return tuple(within), tuple(across)


def _leaks(rows: Sequence[Row], settings: StoredCohort) -> Iterator[str]:
    """Yields patients in more than one hospital or part, identified as in `partition`."""
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
