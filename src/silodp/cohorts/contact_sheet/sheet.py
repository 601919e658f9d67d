"""What is on a contact sheet: which images of which hospital, with which words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.contact_sheet.thumbnail import Ink, Thumbnail, ink_of, thumbnail_of
from silodp.cohorts.synthetic import random_stream

if TYPE_CHECKING:
    from silodp.cohorts.partition import Placement
    from silodp.cohorts.store import Store

STREAM = 6  # of random numbers, apart from those of cohorts
LARGEST = 256  # pixels of a thumbnail's longer side
MOST_HOSPITALS = 40
MOST_COUNTED = 12  # classes whose images are counted for every hospital
TITLE = "Contact sheet"
WARNING = "This page shows patients' images: keep it, and pass it on, only as you would those."


@dataclass(frozen=True)
class Block:
    name: str
    counts: str
    thumbnails: tuple[Thumbnail, ...]


@dataclass(frozen=True)
class Sheet:
    facts: tuple[str, ...]
    key: str
    legend: tuple[tuple[str, Ink], ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]


def compose(store: Store, placement: Placement | None, each: int, seed: int, largest: int) -> Sheet:
    named = any(row.hospital is not None for row in store.rows)
    hospitals: Sequence[str] = ["all hospitals together" if named else "no hospital named"]
    hospital = np.zeros(len(store.rows), dtype=np.int64)
    parts: Sequence[int] = [PARTS.index(row.part) if row.part in PARTS else -1 for row in store.rows]
    notes = list(store.notes)
    if placement is not None:
        hospitals, hospital = placement.hospitals, np.asarray(placement.hospital)
        parts = np.asarray(placement.part).tolist()
        notes += placement.notes
    facts, notes = (
        _without_names(lines, store) for lines in ([store.layout, *_facts(store, placement, each)], notes)
    )
    if store.problems:
        notes.append(f"left out as unusable: {len(store.problems):,}; `silodp data check` names what and why")
    names = _names(store)
    blocks = []
    for number, name in enumerate(hospitals[:MOST_HOSPITALS] if store.rows else ()):
        mine = np.flatnonzero(hospital == number).tolist()
        labels = {index: 0 if store.labels is None else int(store.labels[index]) for index in mine}
        patients = {index: store.rows[index].patient for index in mine}
        chosen = _choose(labels, patients, each, random_stream(seed, STREAM, number))
        chosen.sort(key=lambda index: (labels[index], parts[index], index))
        counts = [_counted(list(patients.values())), _shares(PARTS, [parts[index] for index in mine])]
        if store.labels is not None and len(names) <= MOST_COUNTED:
            counts.append(_shares(names, list(labels.values())))
        thumbnails = tuple(thumbnail_of(store, index, names, parts[index], largest) for index in chosen)
        blocks.append(Block(_clean(name), "; ".join(filter(None, counts)), thumbnails))
    return Sheet(
        tuple(map(_sentence, facts)),
        "Outlines" if store.labels is None else "Classes",
        tuple((name, ink_of(number)) for number, name in enumerate(names)),
        tuple(blocks),
        tuple(map(_sentence, notes)),
    )


def _names(store: Store) -> list[str]:
    """Of the classes or of the masks; a mere number, which beside counts would be read as one, in words."""
    kind = "mask" if store.labels is None else "class"
    names = [f"{kind} {name}" if name.isdigit() else _clean(name) for name in store.classes]
    unnamed = range(len(names), store.targets.shape[1] if store.labels is None else 0)
    return names + [f"mask {number + 1}" for number in unnamed]


def _facts(store: Store, placement: Placement | None, each: int) -> list[str]:
    if not store.rows:
        return ["there are no images, so nothing is shown"]
    channels, height, width = store.images.shape[1:]
    colours = "grey" if channels == 1 else "three channels shown as red, green and blue"
    hospitals = 0 if placement is None else len(placement.hospitals)
    where = f" in {hospitals} hospital{'s' * (hospitals != 1)}" if hospitals else ""
    facts = [f"{_counted([row.patient for row in store.rows])}{where}, {height} × {width} pixels, {colours}"]
    if placement is None:
        facts.append("the images have not been divided among hospitals")
    else:
        rule = placement.rule.removeprefix("simulated: ")
        facts.append(f"the hospitals are {'' if placement.simulated else 'not '}simulated: {rule}")
    whose = "a hospital, " if hospitals else ""
    evenly = " and evenly over classes, not as often as each occurs" if store.labels is not None else ""
    facts.append(f"up to {each} image{'s' * (each != 1)} {whose}drawn at random{evenly}")
    if hospitals > MOST_HOSPITALS:
        facts.append(
            f"the first {MOST_HOSPITALS} hospitals are shown, {hospitals - MOST_HOSPITALS} are left out"
        )
    return facts


def _counted(patients: Sequence[str | None]) -> str:
    images, people = len(patients), len(set(patients))
    whose = f" of {people:,} patient{'s' * (people != 1)}" if patients and None not in patients else ""
    return f"{images:,} image{'s' * (images != 1)}{whose}"


def _shares(names: Sequence[str], numbers: Sequence[int]) -> str:
    counts = Counter(numbers)
    return ", ".join(f"{name}: {counts[number]:,}" for number, name in enumerate(names) if counts[number])


def _choose(
    labels: dict[int, int], patients: dict[int, str | None], each: int, random: np.random.Generator
) -> list[int]:
    """Images at random: from each class in turn, and of another patient as long as there is one."""
    turn = {label: place for place, label in enumerate(random.permutation(sorted(set(labels.values()))))}
    seen: Counter[Any] = Counter()
    shuffled = []
    for index in random.permutation(list(labels)).tolist():
        whose = (labels[index], index if patients[index] is None else patients[index])
        shuffled.append((seen[whose], index))
        seen[whose] += 1
    drawn: Counter[int] = Counter()
    order = []
    for _, index in sorted(shuffled, key=lambda image: image[0]):
        order.append((drawn[labels[index]], turn[labels[index]], index))
        drawn[labels[index]] += 1
    return [index for _, _, index in sorted(order)[:each]]


def _without_names(lines: Sequence[str], store: Store) -> list[str]:
    """Lines without the names of files and patients, nor the brackets that list some.

    An id that is a short number or a mere word stays, for it cannot be told from a count or from prose.
    """
    words = {row.name for row in store.rows} | {row.patient or "" for row in store.rows}
    words |= {*store.files} | {problem.name for problem in store.problems}
    words |= {word.split("#")[0] for word in words}
    text = "\n".join(lines)
    telling = [word for word in words if word in text and re.search(r"\d{5}|\D\d|\d\D|[./]", word)]
    hidden = []
    for line in lines:
        for word in sorted(telling, key=len, reverse=True):
            line = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "\0", line)
        hidden.append(re.sub(r" *\([^()]*\0[^()]*\)", "", line).replace("\0", "…"))
    return hidden


def _sentence(line: str) -> str:
    line = _clean(line).strip()
    return line[:1].upper() + line[1:] + ("" if line.endswith(".") else ".")


def _clean(text: str) -> str:
    """Without characters that cannot be seen, such as those that turn the direction of writing."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
