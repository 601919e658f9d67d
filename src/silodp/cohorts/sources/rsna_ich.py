"""RSNA-ICH: slices of head CT with or without a haemorrhage, and its subtypes.

Two kinds of csv are understood; the images (DICOM, or pictures such as PNG) lie anywhere below their folder:

- Kaggle's, `ID,Label` with six rows an image such as `ID_12cadc6af_epidural,0`;
- a row an image, `ImageID,epidural,…,subdural,healthy`: one csv, or train.csv, validate.csv and test.csv.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import TextIOWrapper
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, TextIO

from silodp.cohorts.catalogue import Catalogue, Pictures, Problem, Scan, one_picture
from silodp.cohorts.kinds import Classes, FolderCohort, ImageSize
from silodp.cohorts.sources.dicom import DICOM, read_dicom
from silodp.cohorts.sources.pairing import patient_pattern, with_pattern, without_ending
from silodp.cohorts.sources.pixels import PICTURES, read_picture
from silodp.cohorts.sources.walking import Below, files_below, stamp
from silodp.errors import InputError
from silodp.files import open_plain
from silodp.settings import Count

SUBTYPES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
KAGGLE = ("ID", "Label")
AN_IMAGE_A_ROW = ("ImageID", *SUBTYPES, "healthy")

MANY = 20_000  # files: fewer are looked at in a moment
LEVELS = 2  # of folders below the root in which a csv is looked for
PART_LISTS = {"train": ("train",), "validation": ("validate", "validation", "val"), "test": ("test",)}
VALUES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
ALL = (1 << len(SUBTYPES)) - 1  # subtypes are bits of a number


@dataclass
class _Files:
    """What lies below the root: csv files, and images by their names without ending. Paths are relative."""

    below: Below
    tables: list[str] = field(default_factory=list)
    dicom: dict[str, list[str]] = field(default_factory=dict)
    pictures: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class _Labels:
    """What csv files say: the subtypes and the part of each image, and what is wrong with which image."""

    subtypes: dict[str, int] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


class RsnaIch(FolderCohort):
    """CT slices of the RSNA haemorrhage challenge with their csv."""

    takes: ClassVar[tuple[str, ...]] = ("folder", ".csv")
    task: ClassVar[str | None] = "classification"
    head: ClassVar[bool] = True
    kind: Literal["rsna-ich"] = "rsna-ich"
    hospitals: Count | None = 20
    image_size: ImageSize | None = 224
    channels: Literal[1, 3] | None = 3
    """3: a CT window each."""
    classes: Classes | None = 2
    sample: Count | None = 25_000

    def decided_by(self, root: Path) -> list[Any] | None:
        folder = root.parent if root.is_file() else root
        below = files_below(folder)
        if len(below.files) < MANY:
            return None
        return [below.fingerprint, *(stamp(folder / name) for name in below.ending_in(".csv"))]

    def reader(self) -> Callable[[Scan], Pictures]:
        return partial(_read, channels=self.channels)

    def scan(self, root: Path) -> Catalogue:
        """Reads the labels, and finds their images in one walk through the folders."""
        pattern = patient_pattern(self)
        given = None
        if root.is_file():
            if root.suffix.lower() != ".csv":
                raise InputError(
                    f"cohort.path = {root}: give the folder of the images and the csv with labels"
                )
            root, given = root.parent, root.name
        files = _files(root)
        columns, tables = _choose(root, [given] if given else files.tables)
        labels = _Labels()
        for table, part in tables.items():
            if columns == KAGGLE:
                _read_kaggle(root / table, labels)
            else:
                _read_rows(root / table, part, labels)
        images = files.dicom if files.dicom and (columns == KAGGLE or not files.pictures) else files.pictures
        without_label = len(images.keys() - labels.subtypes.keys() - labels.wrong.keys())
        if without_label == len(images):
            example = next(iter(labels.subtypes), "ID_…")
            raise InputError(
                f"cohort.path = {root}: {next(iter(tables))} labels {len(labels.subtypes):,} images, but "
                f"none of their files ({example}.dcm or .png) is below that folder" + files.below.in_words
            )
        scans, problems = _match(root, images, labels)
        scans, more = with_pattern(scans, pattern)
        notes = []
        if without_label:
            notes.append(f"{without_label:,} image files have no label and are left out")
        if images is files.pictures and pattern is None:
            notes.append("only slices are known: slices of one patient may fall into two hospitals or parts")
        return Catalogue(
            "rsna-ich",
            root,
            f"RSNA-ICH, {'pictures' if images is files.pictures else 'DICOM'} with {', '.join(tables)}",
            "class",
            ("healthy", "diseased"),
            tuple(scans),
            self.reader(),
            tuple(sorted((*problems, *more, *files.below.problems), key=lambda problem: problem.name)),
            tuple(notes),
            tuple(root / table for table in tables),
        )


def _read(scan: Scan, channels: int | None) -> Pictures:
    if scan.files[0].suffix.lower() in DICOM:
        return read_dicom(scan, channels, head=True)
    return one_picture(scan, read_picture(scan.files[0]))


def _files(root: Path) -> _Files:
    below = files_below(root)
    files = _Files(below)
    for path in below.files:
        name = path.rpartition("/")[2]
        stem, ending = os.path.splitext(name)
        ending = ending.lower()
        if ending in DICOM:
            files.dicom.setdefault(stem, []).append(path)
        elif ending in PICTURES:
            files.pictures.setdefault(stem, []).append(path)
        elif ending == ".csv" and path.count("/") <= LEVELS and "submission" not in name.lower():
            files.tables.append(path)  # Kaggle's sample submission has the columns of labels
    return files


def _choose(root: Path, tables: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str | None]]:
    """The csv files to be read, each with the part that it lists, and the columns that they have."""
    found = {table: _header(root / table) for table in tables}
    folders = sorted({os.path.dirname(table) for table in tables})
    complete = [lists for folder in folders if (lists := _part_lists(found, folder))]
    if len(complete) == 1:
        for table in complete[0]:
            if not set(AN_IMAGE_A_ROW) <= set(found[table]):
                raise InputError(_other_columns(root, {table: found[table]}))
        return AN_IMAGE_A_ROW, complete[0]
    known = {
        table: columns
        for table in tables
        for columns in (KAGGLE, AN_IMAGE_A_ROW)
        if set(columns) <= set(found[table])
    }
    if not known:
        raise InputError(_other_columns(root, found))
    if len(known) > 1:
        raise InputError(
            f"cohort.path = {root}: {', '.join(known)} could each be the list of labels; "
            "give the path of the one to use, or remove the others"
        )
    ((table, columns),) = known.items()
    return columns, {table: None}


def _part_lists(tables: dict[str, list[str]], folder: str) -> dict[str, str | None]:
    """train.csv, validate.csv and test.csv of a folder, if it has all three and they list images."""
    lists: dict[str, str | None] = {}
    for part, names in PART_LISTS.items():
        paths = (os.path.join(folder, f"{name}.csv") for name in names)
        lists |= {path: part for path in paths if path in tables}
    complete = len(lists) == len(set(lists.values())) == len(PART_LISTS)
    return lists if complete and any("ImageID" in tables[table] for table in lists) else {}


def _other_columns(root: Path, found: dict[str, list[str]]) -> str:
    wanted = f"wanted are {', '.join(KAGGLE)} or {', '.join(AN_IMAGE_A_ROW)}"
    if not found:
        return f"cohort.path = {root}: no csv with labels there; {wanted}"
    words = {name.casefold() for name in (*KAGGLE, *AN_IMAGE_A_ROW)}
    nearest = sorted(found, key=lambda table: -len(words & _words(found[table])))
    tables = [f"{table} has the columns {', '.join(found[table])}" for table in nearest]
    return f"cohort.path = {root}: {'; '.join(tables[:3])}; {wanted}"


def _words(columns: Sequence[str]) -> set[str]:
    return set(re.split(r"\W+", " ".join(columns).casefold()))


def _header(path: Path) -> list[str]:
    with _opened(path) as file:
        try:
            return [name.strip() for name in next(csv.reader(file), [])]
        except csv.Error:
            return []


def _opened(path: Path) -> TextIO:
    return TextIOWrapper(open_plain(path), encoding="utf-8-sig", errors="replace", newline="")


def _rows(path: Path, columns: Sequence[str], labels: _Labels) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The values in these columns, and their line."""
    header = _header(path)
    pick = itemgetter(*(header.index(name) for name in columns))
    with _opened(path) as file:
        reader = csv.reader(file, skipinitialspace=True)
        next(reader)
        try:
            for row in reader:
                try:
                    yield reader.line_num, pick(row)
                except IndexError:
                    if row:
                        labels.wrong[f"{path.name}, line {reader.line_num}"] = "the line is cut off"
        except csv.Error as error:
            raise InputError(
                f"cohort.path = {path}: line {reader.line_num} cannot be read as csv ({error}); mend it"
            ) from None


def _read_kaggle(path: Path, labels: _Labels) -> None:
    kinds = (*SUBTYPES, "any")
    bits = {kind: 1 << number for number, kind in enumerate(kinds)}
    told: dict[str, int] = {}  # of each image: bits of the labels that were read, and above them their values
    for line, (name, text) in _rows(path, KAGGLE, labels):
        image, _, kind = name.rpartition("_")
        bit, value = bits.get(kind), VALUES.get(text)
        if bit is None or not image:
            labels.wrong[name] = f"it is not the name of an image and a subtype ({path.name}, line {line})"
            continue
        if value is None:
            labels.wrong[image] = f"a label is neither 0 nor 1 ({kind} is {text!r})"
            continue
        before = told.get(image, 0)
        if before & bit and (before >> len(kinds)) & bit != bit * value:
            labels.wrong[image] = f"its labels contradict each other ({kind} is 0 and 1)"
        told[image] = before | bit | bit * value << len(kinds)
    for image, both in told.items():
        true = both >> len(kinds)
        if missing := [kind for kind in kinds if not both & bits[kind]]:
            labels.wrong.setdefault(image, f"it has no label for some subtypes ({', '.join(missing)})")
        elif bool(true & bits["any"]) != bool(true & ALL):
            labels.wrong.setdefault(image, "its labels contradict each other (any and the subtypes)")
        labels.subtypes[image] = true & ALL


def _read_rows(path: Path, part: str | None, labels: _Labels) -> None:
    for _, (name, *texts) in _rows(path, AN_IMAGE_A_ROW, labels):
        image = without_ending(os.path.basename(name))
        values = [VALUES.get(text, -1) for text in texts]
        subtypes = sum(value << number for number, value in enumerate(values[:-1]))
        if -1 in values:
            column = AN_IMAGE_A_ROW[1 + values.index(-1)]
            labels.wrong[image] = f"a label is neither 0 nor 1 ({column} is {texts[values.index(-1)]!r})"
        elif values[-1] and subtypes:
            labels.wrong[image] = "it is labelled both healthy and with a subtype"
        elif not values[-1] and not subtypes:
            labels.wrong[image] = "it is labelled neither healthy nor with a subtype"
        elif labels.subtypes.setdefault(image, subtypes) != subtypes:
            labels.wrong[image] = "its labels contradict each other (in two rows)"
        if part is not None and (first := labels.parts.setdefault(image, part)) != part:
            labels.wrong[image] = f"it is in two parts ({first} and {part})"


def _match(root: Path, images: dict[str, list[str]], labels: _Labels) -> tuple[list[Scan], list[Problem]]:
    """The scans in the order of names, each with its rarest subtype as stratum, and what is wrong."""
    wrong = dict(labels.wrong)
    for image in labels.subtypes.keys() - wrong.keys():
        paths = images.get(image, [])
        if not paths:
            wrong[image] = "it has a label but no image file"
        elif len(paths) > 1 and len({os.path.realpath(root / path) for path in paths}) > 1:
            wrong[image] = f"it has several image files ({', '.join(paths)})"
    good = {image: subtypes for image, subtypes in labels.subtypes.items() if image not in wrong}
    strata = _strata(good.values())
    scans = [
        Scan(
            images[image][0],
            (root / images[image][0],),
            label=int(subtypes > 0),
            part=labels.parts.get(image),
            stratum=strata[subtypes],
        )
        for image, subtypes in good.items()
    ]
    problems = [Problem(image, what) for image, what in wrong.items()]
    return sorted(scans, key=lambda scan: scan.name), problems


def _strata(of_images: Iterable[int]) -> list[str]:
    """For every set of subtypes the one that the fewest images have."""
    counts = Counter(of_images)
    having = [
        sum(count for subtypes, count in counts.items() if subtypes >> number & 1)
        for number in range(len(SUBTYPES))
    ]
    rarest_first = sorted(range(len(SUBTYPES)), key=lambda number: having[number])
    return [
        next((SUBTYPES[number] for number in rarest_first if subtypes >> number & 1), "healthy")
        for subtypes in range(ALL + 1)
    ]
