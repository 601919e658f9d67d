"""What lies at a path, before and after it is decoded: every source of files speaks in these words.

A source's `scan` looks at names, lists and csv files only and returns a `Catalogue`. Its `read` decodes one
`Scan` into `Pictures`; it knows nothing of hospitals that are dealt out, of the cache, or of other scans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from silodp.errors import printable

PARTS = ("train", "validation", "test")

OnRead = Callable[[int, int], None]
"""Told how many files of how many have been read."""


class Unreadable(ValueError):
    """A file that cannot be used; the message says why, without the file's name."""


@dataclass(frozen=True)
class Problem:
    """Something that cannot be used, and why."""

    name: str
    what: str

    def __str__(self) -> str:
        return printable(f"{self.name}: {self.what}", one_line=True)


@dataclass(frozen=True)
class Row:
    """One image: whose, and where it stands. None: the files do not say.

    Attributes:
        name: of the image, unique: its file's path below the root, with "#7" for number 7 of several.
        hospital: where it was taken.
        patient: who it shows.
        part: "train", "validation" or "test", where the data set says so.
        size: (height, width) as it was in the file.
        links: other ids that the person has, such as a study's: images that share one stay together.
        features: what else is known, such as {"slice": 12.0, "scanner": "Acme X"}; "slice" is its position.
    """

    name: str
    hospital: str | None = None
    patient: str | None = None
    part: str | None = None
    size: tuple[int, int] = (0, 0)
    features: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scan:
    """What is decoded in one go: a picture, a volume, or a file of many pictures.

    Attributes:
        name: the image's path below the root, as people know it.
        files: the image's file, then those of its masks.
        label: its class, where the target is a class.
        hospital, patient, part: what names and lists tell, as in `Row`.
        stratum: `CohortSettings.sample` draws evenly over strata, such as the subtypes of a haemorrhage.
    """

    name: str
    files: tuple[Path, ...]
    label: int | None = None
    hospital: str | None = None
    patient: str | None = None
    part: str | None = None
    stratum: str = ""

    def row(self, **more: Any) -> Row:
        """The row of a scan that is one image, with what its file adds."""
        return replace(Row(self.name, self.hospital, self.patient, self.part), **more)


@dataclass(frozen=True)
class Pictures:
    """The images of one scan.

    Attributes:
        images: (n, channels, height, width); bytes 0…255, or floating-point numbers 0…1.
        targets: (n,) classes, or (n, masks, height, width) of 0 and 1.
        rows: one for each image.
        problems: images of this scan that were left out because they cannot be used.
    """

    images: NDArray[Any]
    targets: NDArray[Any]
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Catalogue:
    """What was recognised at a path.

    Attributes:
        kind: as in `CohortSettings.kind`.
        root: where names begin.
        layout: one sentence that says what was recognised.
        target: what is to be predicted.
        classes: names of the classes, or of the masks.
        scans: in the order of their names.
        read: decodes one scan; raises `Unreadable`, or whatever the decoder raises, if it cannot.
        problems: found without decoding, such as a label without an image.
        notes: what a reader of results should know.
        lists: csv and json files that told about the scans.
    """

    kind: str
    root: Path
    layout: str
    target: Literal["class", "mask"]
    classes: tuple[str, ...]
    scans: tuple[Scan, ...]
    read: Callable[[Scan], Pictures]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    lists: tuple[Path, ...] = ()


def one_picture(scan: Scan, image: NDArray[Any], **row: Any) -> Pictures:
    """A scan that is one image (channels, height, width), with its label."""
    row = {"size": tuple(image.shape[-2:]), **row}
    targets = np.array([-1 if scan.label is None else scan.label])
    return Pictures(image[None], targets, (scan.row(**row),))
