"""csv files with patients (`patients.csv`) or classes of images."""

from __future__ import annotations

import csv
import math
import os
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path, PurePosixPath
from typing import Any

from silodp.cohorts.catalogue import Problem, Scan
from silodp.cohorts.sources.pairing import without_ending
from silodp.errors import InputError
from silodp.files import open_plain

PATIENTS = "patients.csv"
COLUMNS = ("file", "patient")
NAMES = ("file", "filename", "file_name", "image", "image_name", "image_id", "imageid", "img", "path")
CLASSES = ("label", "class", "diagnosis", "category", "target")
WHO = {
    "patient": ("patient", "patient_id", "patientid"),
    "hospital": ("hospital", "site", "center", "centre"),
}

Features = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Labels:
    """The content of csv files with classes, by path of the image.

    Attributes:
        tables: the csv files.
        label, patient, hospital: of each image that they name; the latter two where they have such a column.
        features: further columns.
        problems: rows that cannot be used.
    """

    tables: tuple[Path, ...]
    label: Mapping[str, str]
    patient: Mapping[str, str]
    hospital: Mapping[str, str]
    features: Features
    problems: tuple[Problem, ...]


def read_labels(root: Path, files: Sequence[str], images: Sequence[str]) -> Labels | None:
    """Reads classes from csv files in the root or its folders; None if there are none.

    Args:
        root: of the cohort.
        files: all below it.
        images: those of them that are images.
    """
    tables = {}
    for name in _tables(files):
        columns, rows = read_table(root / name)
        known = {column.strip().lower(): column for column in columns if column}
        named, classed = _column(known, NAMES), _column(known, CLASSES)
        if named and classed:
            tables[name] = (known, named, classed, rows)
    if not tables:
        return None
    found: dict[str, dict[str, str]] = {"label": {}, "patient": {}, "hospital": {}}
    features: dict[str, dict[str, Any]] = {}
    problems = []
    places = _places(images)
    for table, (known, named, classed, rows) in tables.items():
        who = {what: _column(known, names) for what, names in WHO.items()}
        own = {named, classed, *who.values()}
        for row in rows:
            said, label = _clean(row[named]), _clean(row[classed])
            image = _find(said, PurePosixPath(table).parent.as_posix(), places)
            if not said or image is None or not label or found["label"].get(image, label) != label:
                problems.append(_unused(table, said, image, label))
                continue
            found["label"][image] = label
            for what, column in who.items():
                if column and (text := _clean(row[column])):
                    found[what][image] = text
            features[image] = _features(row, own)
    return Labels(
        tuple(root / table for table in tables), **found, features=features, problems=tuple(problems)
    )


def tables_without_classes(root: Path, files: Sequence[str]) -> str:
    """Names a csv file that `read_labels` passes over, and what it looks for; empty where there is none."""
    if not (tables := _tables(files)):
        return ""
    columns = ", ".join(read_table(root / tables[0])[0]) or "none"
    return (
        f"; {tables[0]} has the columns {columns}, and a csv of classes needs one of {', '.join(NAMES)} and "
        f"one of {', '.join(CLASSES)}"
    )


def _tables(files: Sequence[str]) -> list[str]:
    """The csv files that may have classes: in the root or its folders."""
    near = (name for name in files if name.lower().endswith(".csv") and name.count("/") <= 1)
    return [name for name in near if PurePosixPath(name).name != PATIENTS]


def _column(known: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The first of these columns that a table has, as the table writes it."""
    return next((known[name] for name in names if name in known), None)


def _features(row: Mapping[str, Any], own: Collection[str | None]) -> dict[str, Any]:
    """What a row says in other columns than `own`."""
    return {column: value_of(text) for column, text in row.items() if column and column not in own and text}


def _unused(table: str, said: str, image: str | None, label: str) -> Problem:
    if not said:
        return Problem(table, "has a row that names no file")
    if image is None:
        return Problem(said, f"is in {table}, but there is no such image, or more than one")
    return Problem(image, f"has another class in {table}" if label else f"has no class in {table}")


def _places(images: Sequence[str]) -> dict[str, str | None]:
    """Images by every name that a table may use; None for a name of several images."""
    places: dict[str, str | None] = {}
    for image in images:
        path = PurePosixPath(image)
        for name in {path.name, without_ending(path.name), without_ending(image)}:
            places[composed(name)] = None if composed(name) in places else image
    return places | {composed(image): image for image in images}


def _find(said: str, folder: str, places: Mapping[str, str | None]) -> str | None:
    return places.get(composed(f"{folder}/{said}")) or places.get(said)


def with_patients(
    path: Path, scans: Sequence[Scan], needed: bool
) -> tuple[list[Scan], Features, list[Problem]]:
    """Adds the patients of `patients.csv` to scans; returns further columns and problems, too."""
    columns, rows = read_table(path)
    if missing := [column for column in COLUMNS if column not in columns]:
        there = ", ".join(columns) or "none"
        raise InputError(f"cohort.path = {path}: the column {missing[0]} is missing; it has {there}")
    patients: dict[str, str] = {}
    features: dict[str, dict[str, Any]] = {}
    problems = []
    known = {composed(scan.name): scan.name for scan in scans}
    for row in rows:
        name = _clean(row["file"])
        name = known.get(name, name)
        if name in patients or not name:
            what = f"is in {path.name} more than once" if name else "has a row that names no file"
            problems.append(Problem(name or path.name, what))
            continue
        if not os.path.isfile(path.parent / name):  # a Path's own function raises where a folder is closed
            problems.append(Problem(name, f"is in {path.name}, but there is no such file"))
        patients[name] = (row["patient"] or "").strip()
        features[name] = _features(row, COLUMNS)
    if needed:
        lacking = [scan for scan in scans if not patients.get(scan.name)]
        problems += [Problem(scan.name, f"has no patient in {path.name}") for scan in lacking]
        scans = [replace(scan, patient=patients[scan.name]) for scan in scans if patients.get(scan.name)]
    return list(scans), features, problems


def read_table(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Reads columns and rows of a csv file, separated by commas or semicolons; missing values are None."""
    try:
        with TextIOWrapper(open_plain(path), encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            semicolons = first.count(";") > first.count(",")  # as Excel writes in half of Europe
            reader = csv.DictReader(file, delimiter=";" if semicolons else ",")
            return list(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cohort.path = {path}: cannot be read ({error}); save it as csv in UTF-8") from None


def value_of(text: Any) -> float | str:
    """The text as a number if it is a finite one."""
    try:
        number = float(text)
    except (TypeError, ValueError):
        return str(text)
    return number if math.isfinite(number) else str(text)


def composed(text: str) -> str:
    """The text with each accented letter as one character; macOS writes two."""
    return unicodedata.normalize("NFC", text)


def _clean(text: str | None) -> str:
    return composed((text or "").strip().replace("\\", "/").removeprefix("./"))
