"""Groups of images that stay together: those of one patient, and those with the same pixels."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Row
from silodp.cohorts.kinds import StoredCohort

Numbers = NDArray[np.int64]

STREAM = 4  # of random numbers that place images, apart from those of other cohorts


@dataclass(frozen=True)
class Groups:
    """The group of each image; the size of each group, and its part if the files define it."""

    of: Numbers
    sizes: Numbers
    parts: Numbers | None
    unit: str


def codes(values: Iterable[Hashable]) -> Numbers:
    """Numbers values from 0 in order of appearance; equal values have equal numbers."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)


def people_of(rows: Sequence[Row], settings: StoredCohort) -> Numbers:
    """A number for the person of each image, from ids and links between them; -1 without any.

    Case and surrounding spaces are ignored: it is safer to take two people for one than to separate one's
    images. A link that all images have, such as «anonymous», is ignored where ids tell people apart.
    """
    local = settings.patient_ids == "local"
    told = {(row.patient or "").strip().casefold() for row in rows} - {""}
    shared = set.intersection(*(set(row.links) for row in rows)) if rows and len(told) > 1 else set()
    images, names = [], list[Hashable]()
    for number, row in enumerate(rows):
        known = (row.patient or "").strip().casefold()
        mine = [("patient", row.hospital if local else None, known)] if known else []
        for name in (*mine, *(link for link in row.links if link not in shared)):
            images.append(number)
            names.append(name)
    if not names:
        return np.full(len(rows), -1)
    starts = np.array(images)
    people = _components(starts, codes(names), len(rows))
    return np.where(np.isin(np.arange(len(rows)), starts), people, -1)


def linked(people: Numbers, twins: Numbers) -> Numbers:
    """The group of each image: connected, directly or through others, by a patient or by equal pixels."""
    count = len(people)
    images, known = np.arange(count), people >= 0
    pictures = codes(twins.tolist())
    starts = np.concatenate([images, images[known]])
    return _components(starts, np.concatenate([pictures, count + people[known]]), count)


def _components(images: Numbers, names: Numbers, count: int) -> Numbers:
    """The component of each of `count` images in the graph of images and the names that they have."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = count + int(names.max()) + 1
    graph = coo_array((np.ones(len(names), dtype=bool), (images, count + names)), shape=(size, size))
    return codes(connected_components(graph, directed=False)[1][:count].tolist())


def spread(keys: Numbers, places: Numbers) -> list[int]:
    """The keys that are in more than one place; negative keys do not count."""
    width = int(places.max()) + 1
    pairs = np.unique(keys[keys >= 0] * width + places[keys >= 0])
    return np.flatnonzero(np.bincount(pairs // width) > 1).tolist()


def examples_of(torn: list[int], people: Numbers, pairs: list[tuple[str | None, str | None]]) -> str:
    """Up to three patients with their places."""
    found = []
    for person in torn[:3]:
        mine = [pairs[index] for index in np.flatnonzero(people == person)]
        found.append(f"{mine[0][0]} in {' and '.join(dict.fromkeys(str(place) for _, place in mine))}")
    return listed(found, len(torn))


def listed(examples: Sequence[str], count: int) -> str:
    return ", ".join(examples[:3]) + (", …" if count > 3 else "")
