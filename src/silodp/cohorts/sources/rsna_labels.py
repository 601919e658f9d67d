"""The csv files of RSNA-ICH: which of those in a folder have labels, and the labels of each image."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from operator import itemgetter
from pathlib import Path
from typing import TextIO

from silodp.cohorts.sources.pairing import without_ending
from silodp.errors import InputError
from silodp.files import open_plain

SUBTYPES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
KAGGLE = ("ID", "Label")
AN_IMAGE_A_ROW = ("ImageID", *SUBTYPES, "healthy")
PART_LISTS = {"train": ("train",), "validation": ("validate", "validation", "val"), "test": ("test",)}
VALUES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
ALL = (1 << len(SUBTYPES)) - 1  # subtypes are bits of a number


@dataclass
class Labels:
    """The subtypes and the part of each image, and errors by image."""

    subtypes: dict[str, int] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


def choose_tables(root: Path, tables: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str | None]]:
    """Chooses the csv files to read: their columns, and the part that each lists."""
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
    """The lists train.csv, validate.csv and test.csv of a folder with their parts; empty unless all exist."""
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


def _rows(path: Path, columns: Sequence[str], labels: Labels) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the line number and the values in these columns."""
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
                f"cohort.path = {path}: line {reader.line_num} cannot be read as csv ({error}); correct it"
            ) from None


def read_kaggle(path: Path, labels: Labels) -> None:
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


def read_rows(path: Path, part: str | None, labels: Labels) -> None:
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
