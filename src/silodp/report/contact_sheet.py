"""A contact sheet: a few images of every hospital on one page, with classes or masks marked.

It names hospitals and classes, but neither patients nor files, since it may be shown to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.synthetic import random_stream
from silodp.cohorts.thumbnail import draw, ink_of, with_bar
from silodp.errors import InputError
from silodp.files import write_atomically
from silodp.report.contact_sheet_png import as_png
from silodp.report.frame import render
from silodp.report.metric import name_of
from silodp.report.pictures import Block, Gallery, Picture
from silodp.report.words import several, without_names
from silodp.runs.wording import sentence

if TYPE_CHECKING:
    from silodp.cohorts.partition import Placement
    from silodp.cohorts.store import Store

STREAM = 6  # random stream, different from those of cohorts
LARGEST = 256  # pixels of the longer side of a picture
MOST_EACH = 64
MOST_HOSPITALS = 40
MOST_COUNTED = 12  # classes whose images are counted for every hospital
TITLE = "Contact sheet"


@dataclass(frozen=True)
class Sheet:
    """Its content: sentences before the pictures, pictures by hospital, sentences after them."""

    facts: tuple[str, ...]
    gallery: Gallery
    notes: tuple[str, ...]


def write_contact_sheet(
    store: Store, placement: Placement | None, out: Path, *, each: int = 8, seed: int = 0
) -> None:
    """Writes a page (.html) or a picture (.png) with up to `each` images of every hospital.

    Only the pixels of these images are read from the store.

    Args:
        store: the decoded images.
        placement: images by hospital and part; None: one group of all images.
        out: the file; its folder is created.
        each: images of a hospital.
        seed: for the choice of images.
    """
    suffix = out.suffix.lower()
    if suffix not in (".html", ".png"):
        raise InputError(f"--out {out}: a contact sheet is a page or a picture; choose .html or .png")
    if not 1 <= each <= MOST_EACH:
        raise InputError(f"--each {each}: so many images a hospital cannot be shown; give 1 to {MOST_EACH}")
    if out.is_dir():
        raise InputError(f"--out {out}: a folder has this name; choose another one")
    sheet = compose(store, placement, each, seed)
    if suffix == ".html":
        page = render("contact_sheet.html", "silodp data preview", TITLE, shows_patients=True, sheet=sheet)
        content = page.html.encode("utf-8", "replace")
    else:
        content = as_png(TITLE, sheet.facts, sheet.gallery, sheet.notes)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror}); choose another place") from None


def compose(store: Store, placement: Placement | None, each: int, seed: int) -> Sheet:
    """Chooses images and describes them."""
    named = any(row.hospital is not None for row in store.rows)
    hospitals: Sequence[str] = ["all hospitals together" if named else "no hospital named"]
    hospital = np.zeros(len(store.rows), dtype=np.int64)
    parts: Sequence[int] = [PARTS.index(row.part) if row.part in PARTS else -1 for row in store.rows]
    notes = list(store.notes)
    if placement is not None:
        hospitals, hospital = placement.hospitals, np.asarray(placement.hospital)
        parts = np.asarray(placement.part).tolist()
        notes += placement.notes
    if store.problems:
        notes.append(f"left out as unusable: {len(store.problems):,}; `silodp data check` names what and why")
    names = _class_names(store)
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
        pictures = tuple(_picture(store, index, names, parts[index], _clean(name)) for index in chosen)
        blocks.append(Block(_clean(name), pictures, "; ".join(filter(None, counts))))
    legend = tuple((name, ink_of(number)) for number, name in enumerate(names))
    facts = _sentences([store.layout, *_facts(store, placement, each)], store)
    return Sheet(facts, Gallery("", tuple(blocks), legend), _sentences(notes, store))


def _picture(store: Store, index: int, names: Sequence[str], part: int, hospital: str) -> Picture:
    masks = None if store.labels is not None else np.asarray(store.targets[index]) > 0
    pixels = draw(np.asarray(store.images[index]), masks, LARGEST)
    if masks is None:
        label = int(store.targets[index])
        what = "no class" if label < 0 else name_of(label, names)
        pixels = with_bar(pixels, ink_of(label))
    else:
        what = "" if masks.any() else "nothing marked"
    where = PARTS[part] if part >= 0 else ""
    alt = ", ".join(filter(None, [hospital, what or "masks outlined", where]))
    return Picture(pixels, alt, tuple(filter(None, [what, where])))


def _class_names(store: Store) -> list[str]:
    """Names of classes or masks, with numbers for those without a name."""
    kind, masks = ("mask", store.targets.shape[1]) if store.labels is None else ("class", 0)
    known = [_clean(name) for name in store.classes]
    return [name_of(number, known, kind) for number in range(max(len(known), masks))]


def _facts(store: Store, placement: Placement | None, each: int) -> list[str]:
    if not store.rows:
        return ["there are no images, so nothing is shown"]
    channels, height, width = store.images.shape[1:]
    colours = "grey" if channels == 1 else "three channels shown as red, green and blue"
    hospitals = 0 if placement is None else len(placement.hospitals)
    where = f" in {several(hospitals, 'hospital')}" if hospitals else ""
    facts = [f"{_counted([row.patient for row in store.rows])}{where}, {height} × {width} pixels, {colours}"]
    if placement is None:
        facts.append("the images have not been divided among hospitals")
    else:
        rule = placement.rule.removeprefix("simulated: ")
        facts.append(f"the hospitals are {'' if placement.simulated else 'not '}simulated: {rule}")
    whose = "a hospital, " if hospitals else ""
    evenly = " and evenly over classes, not as often as each occurs" if store.labels is not None else ""
    facts.append(f"up to {several(each, 'image')} {whose}drawn at random{evenly}")
    marks = "outlines show the masks" if store.labels is None else "the bar below an image tells its class"
    facts.append(f"{marks}, in the colours below")
    if hospitals > MOST_HOSPITALS:
        facts.append(
            f"the first {MOST_HOSPITALS} hospitals are shown, {hospitals - MOST_HOSPITALS} are left out"
        )
    return facts


def _counted(patients: Sequence[str | None]) -> str:
    known = bool(patients) and None not in patients
    whose = f" of {several(len(set(patients)), 'patient')}" if known else ""
    return several(len(patients), "image") + whose


def _shares(names: Sequence[str], numbers: Sequence[int]) -> str:
    counts = Counter(numbers)
    return ", ".join(f"{name}: {counts[number]:,}" for number, name in enumerate(names) if counts[number])


def _choose(
    labels: dict[int, int], patients: dict[int, str | None], each: int, random: np.random.Generator
) -> list[int]:
    """Random images from each class in turn, of different patients as far as possible."""
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


def _sentences(lines: Sequence[str], store: Store) -> tuple[str, ...]:
    names = {row.name for row in store.rows} | {row.patient or "" for row in store.rows}
    names |= {*store.files} | {problem.name for problem in store.problems}
    return tuple(sentence(_clean(line)) for line in without_names(lines, names))


def _clean(text: str) -> str:
    """The text without invisible characters, such as those that change the writing direction."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
