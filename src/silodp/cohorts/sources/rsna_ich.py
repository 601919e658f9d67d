"""RSNA-ICH: slices of head CT with or without a haemorrhage, and its subtypes.

Two kinds of csv are read; the images (DICOM, or pictures such as PNG) are anywhere below their folder:

- Kaggle's, `ID,Label` with six rows an image such as `ID_12cadc6af_epidural,0`;
- a row an image, `ImageID,epidural,…,subdural,healthy`: one csv, or train.csv, validate.csv and test.csv.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from silodp.cohorts.catalogue import Catalogue, Pictures, Problem, Scan
from silodp.cohorts.kinds import Classes, FolderCohort, ImageSize
from silodp.cohorts.sources.dicom import DICOM
from silodp.cohorts.sources.folder import read_image
from silodp.cohorts.sources.pairing import patient_pattern, with_pattern
from silodp.cohorts.sources.pixels import PICTURES
from silodp.cohorts.sources.rsna_labels import (
    ALL,
    KAGGLE,
    SUBTYPES,
    Labels,
    choose_tables,
    read_kaggle,
    read_rows,
)
from silodp.cohorts.sources.walking import Below, files_below, stamp
from silodp.errors import InputError
from silodp.settings import Count

MANY = 20_000  # files; fewer are scanned quickly
LEVELS = 2  # of folders below the root in which a csv is looked for


Images = dict[str, list[str]]  # paths of an image by its name without extension


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
        return partial(read_image, settings=self)

    def scan(self, root: Path) -> Catalogue:
        """Reads the labels, and finds their images in one pass over the folders."""
        pattern = patient_pattern(self)
        given = None
        if root.is_file():
            if root.suffix.lower() != ".csv":
                raise InputError(
                    f"cohort.path = {root}: give the folder of the images and the csv with labels"
                )
            root, given = root.parent, root.name
        below = files_below(root)
        csv_files, dicom, pictures = _by_use(below)
        columns, tables = choose_tables(root, [given] if given else csv_files)
        labels = Labels()
        for table, part in tables.items():
            if columns == KAGGLE:
                read_kaggle(root / table, labels)
            else:
                read_rows(root / table, part, labels)
        images = dicom if dicom and (columns == KAGGLE or not pictures) else pictures
        without_label = len(images.keys() - labels.subtypes.keys() - labels.wrong.keys())
        if without_label == len(images):
            example = next(iter(labels.subtypes), "ID_…")
            raise InputError(
                f"cohort.path = {root}: {next(iter(tables))} labels {len(labels.subtypes):,} images, but "
                f"none of their files ({example}.dcm or .png) is below that folder" + below.in_words
            )
        scans, problems = _match(root, images, labels)
        scans, more = with_pattern(scans, pattern)
        notes = []
        if without_label:
            notes.append(f"{without_label:,} image files have no label and are left out")
        if images is pictures and pattern is None:
            notes.append("only slices are known: slices of one patient may fall into two hospitals or parts")
        return Catalogue(
            "rsna-ich",
            root,
            f"RSNA-ICH, {'pictures' if images is pictures else 'DICOM'} with {', '.join(tables)}",
            "class",
            ("healthy", "diseased"),
            tuple(scans),
            self.reader(),
            tuple(sorted((*problems, *more, *below.problems), key=lambda problem: problem.name)),
            tuple(notes),
            tuple(root / table for table in tables),
        )


def _by_use(below: Below) -> tuple[list[str], Images, Images]:
    """The csv files that may have labels, the DICOM files and the pictures."""
    tables: list[str] = []
    dicom: Images = {}
    pictures: Images = {}
    for path in below.files:
        name = path.rpartition("/")[2]
        stem, ending = os.path.splitext(name)
        ending = ending.lower()
        if ending in DICOM:
            dicom.setdefault(stem, []).append(path)
        elif ending in PICTURES:
            pictures.setdefault(stem, []).append(path)
        elif ending == ".csv" and path.count("/") <= LEVELS and "submission" not in name.lower():
            tables.append(path)  # Kaggle's sample submission has the columns of labels
    return tables, dicom, pictures


def _match(root: Path, images: Images, labels: Labels) -> tuple[list[Scan], list[Problem]]:
    """The scans in order of names, each with its rarest subtype as stratum, and problems."""
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
    """For every set of subtypes, as bits, the one that the fewest images have."""
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
