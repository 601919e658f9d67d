"""From files to a cohort: scan, decode into a store, assign to hospitals and parts, copy into tensors."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS, Catalogue, OnRead, Problem, Unreadable
from silodp.cohorts.cohort import Cohort, Examples, HospitalData, all_numbers
from silodp.cohorts.kinds import CohortSettings, FileCohort, FolderCohort, MaskSettings, StoredCohort
from silodp.cohorts.mask_values import doubt_of
from silodp.cohorts.partition import Placement, place
from silodp.cohorts.position import position_auc
from silodp.cohorts.sampling import sample_evenly
from silodp.cohorts.scan_cache import cached_scan
from silodp.cohorts.sources.walking import one_walk
from silodp.cohorts.store import UNFINISHED, Store, build_store, cached_store, open_store
from silodp.errors import InputError
from silodp.files import default_cache, refuse_filled
from silodp.garbage import no_search_for_garbage

NAMED = 8  # problems that an error names; `silodp data check` names all


class UnfitFile(InputError):
    """A file of the right kind that cannot be used."""


@no_search_for_garbage()
def load_files(settings: StoredCohort, on_read: OnRead | None = None) -> Cohort:
    """Loads the cohort at `settings.path`."""
    store = read_store(settings, on_read)
    refuse_unusable(store, settings)
    return assemble(store, place_store(store, settings))


def refuse_unusable(store: Store, settings: StoredCohort) -> None:
    """Refuses problems, unless the settings skip them, and masks whose meaning is ambiguous."""
    # For a prepared cohort this was decided when it was prepared.
    accepted = not isinstance(settings, FileCohort) or settings.skip_unreadable
    if not store.rows or (store.problems and not accepted):
        raise InputError(_refusal(store.problems, settings))
    if isinstance(settings, MaskSettings) and (doubt := doubt_of(store.mask_values, settings)):
        raise InputError(f"cohort.path = {settings.path}: {doubt.sentence}")


def read_store(
    settings: StoredCohort, on_read: OnRead | None = None, catalogue: Catalogue | None = None
) -> Store:
    """Returns the decoded images, from the cache if possible; problems are recorded, not raised.

    Args:
        settings: with the defaults of their kind.
        on_read: told how many files of how many have been decoded.
        catalogue: of `settings.path`, if it was scanned before.
    """
    if isinstance(settings, FileCohort):
        store = cached_store(catalogue or look(settings), settings, _cache(settings), on_read)
    else:
        store = open_store(settings.root)
        _refuse_other_form(store, settings)
    return _numbered_as_agreed(store, settings)


def _numbered_as_agreed(store: Store, settings: StoredCohort) -> Store:
    """Keeps labels that are whole numbers as they are, where the number of classes is agreed on.

    Otherwise classes are numbered in the order of those that the files show, which in another hospital may
    be others.
    """
    count, names = settings.classes, store.classes
    if count is None or store.target != "class" or not all_numbers(names):
        return store
    numbers = [int(name) for name in names]
    if numbers == [*range(len(numbers))]:
        return store
    if max(numbers) >= count:
        raise InputError(
            f"cohort.classes = {count}, so that classes are 0 to {count - 1}, and the files have "
            f"{max(numbers)}; correct the labels, or set another cohort.classes"
        )
    targets = np.array(numbers, np.int64)[store.targets]
    return replace(store, targets=targets, classes=tuple(map(str, range(count))))


def _cache(settings: FileCohort) -> Path:
    return Path(settings.cache).expanduser() if settings.cache else default_cache()


def prepare(
    settings: FileCohort,
    out: Path,
    on_read: OnRead | None = None,
    catalogue: Catalogue | None = None,
) -> Store:
    """Decodes the files at `settings.path` into the folder `out`, for cohort.kind = prepared."""
    refuse_filled(out, UNFINISHED)
    catalogue = catalogue or look(settings)
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)  # these are patients' images
    build_store(catalogue, settings, out, on_read)
    store = open_store(out)
    try:
        refuse_unusable(store, settings)
    except InputError:
        shutil.rmtree(out)
        raise
    return store


@one_walk()
def look(settings: FileCohort) -> Catalogue:
    """Scans `settings.path`, and draws a sample if the settings ask for one."""
    return cached_scan(settings, _cache(settings), partial(_look, settings))


def _look(settings: FileCohort) -> Catalogue:
    root = settings.root
    try:
        catalogue = settings.scan(root)
    except Unreadable as error:
        raise UnfitFile(f"cohort.path = {root}: {error}") from None
    count, sample = len(catalogue.scans), settings.sample if isinstance(settings, FolderCohort) else None
    if sample is None or sample >= count:
        return catalogue
    scans = sample_evenly(catalogue.scans, sample, settings.seed)
    note = f"drawn {len(scans):,} of {count:,} files, classes balanced (cohort.sample); others were not read"
    return replace(catalogue, scans=scans, notes=(*catalogue.notes, note))


def place_store(store: Store, settings: StoredCohort) -> Placement:
    """Assigns each image of a store to a hospital and a part."""
    kind = CohortSettings.of(kind=store.kind)  # what was prepared keeps the defaults of its kind
    assert isinstance(kind, FileCohort)
    if settings.hospitals is None:
        settings = settings.model_copy(update={"hospitals": kind.hospitals})
    return place(store.rows, store.labels, store.digests, settings, kind.split)


def assemble(store: Store, placement: Placement, *, pixels: bool = True) -> Cohort:
    """Copies a store into tensors, hospital by hospital.

    Without `pixels`, every image is a view of the first one, which is enough to count and to check.
    """
    first = torch.from_numpy(np.array(store.images[:1]))
    hospitals = []
    for name, parts in _members(placement).items():
        examples = {}
        for part, mine in parts.items():
            images = torch.from_numpy(store.images[mine]) if pixels else first.expand(len(mine), -1, -1, -1)
            people = None if placement.people is None else torch.from_numpy(placement.people[mine])
            examples[part] = Examples(images, torch.from_numpy(store.targets[mine]), people)
        hospitals.append(HospitalData(name, *(examples[part] for part in PARTS), classes=store.classes))
    return Cohort(store.kind, tuple(hospitals), _about(store, placement))


def _members(placement: Placement) -> dict[str, dict[str, NDArray[np.int64]]]:
    """The numbers of each hospital's images, by part."""
    return {
        hospital: {
            part: np.flatnonzero((placement.hospital == number) & (placement.part == which))
            for which, part in enumerate(PARTS)
        }
        for number, hospital in enumerate(placement.hospitals)
    }


def _about(store: Store, placement: Placement) -> dict[str, Any]:
    """What cohort.json has beside the counts: where the images come from, and which hospital has which."""
    positions = np.array([_number(row.features.get("slice")) for row in store.rows])
    patients = [row.patient for row in store.rows]
    names = {
        hospital: {part: [store.rows[number].name for number in mine] for part, mine in parts.items()}
        for hospital, parts in _members(placement).items()
    }
    return {
        "layout": store.layout,
        "fit": store.fit,
        "classes": list(store.classes),
        "simulated": placement.simulated,
        "partition": placement.rule,
        "patients": len(set(patients)) if None not in patients else None,
        "position_auc": position_auc(positions, store.labels, placement, patients),
        "notes": [*store.notes, *placement.notes],
        "left_out": [str(problem) for problem in store.problems],
        "files": store.files,
        "members": names,
    }


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _refuse_other_form(store: Store, settings: StoredCohort) -> None:
    size, channels = store.images.shape[-1], store.images.shape[1]
    for field, wanted, found in (
        ("image_size", settings.image_size, size),
        ("channels", settings.channels, channels),
    ):
        if wanted not in (None, found):
            raise InputError(
                f"cohort.{field} = {wanted}: {settings.path} was prepared with {found}; "
                f"set cohort.{field}={found}, or prepare again with --set {field}={wanted}"
            )


def _refusal(problems: Sequence[Problem], settings: StoredCohort) -> str:
    """One sentence with the problems and what to do about them."""
    if not problems:
        return f"cohort.path = {settings.path}: no image was found"
    kinds = Counter(problem.what.split(" (")[0] for problem in problems)
    things = f"{len(problems)} thing{'s' if len(problems) > 1 else ''}"
    more = f"; and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
    named = "; ".join(map(str, problems[:NAMED]))
    summary = ", ".join(f"{count} × {what}" for what, count in kinds.most_common(NAMED))
    return (
        f"cohort.path = {settings.path}: {things} cannot be used ({summary}): {named}{more}; "
        "correct or remove them (`silodp data check` names all), or set cohort.skip_unreadable=true"
    )
