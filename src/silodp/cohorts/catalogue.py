"""The types that every source of files uses, for what it finds at a path and what it decodes.

A source's `scan` looks at names, lists and csv files only and returns a `Catalogue`. Its `read` decodes one
`Scan` into `Pictures`; it knows nothing of the cache, of simulated hospitals, or of other scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from silodp.errors import printable

PARTS = ("train", "validation", "test")
PART_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}  # as folders and npz files write them

OnRead = Callable[[int, int], None]
"""Called with the number of files read so far and in total."""


class Unreadable(ValueError):
    """A file that cannot be used; the message says why, without the file's name.

    Attributes:
        file: which one, where it is not the image but one of its masks.
    """

    def __init__(self, why: str, file: Path | None = None) -> None:
        super().__init__(why)
        self.file = file


@contextmanager
def at_fault(file: Path, otherwise: str = "cannot be read ({})") -> Iterator[None]:
    """Turns every error inside into an `Unreadable` that names this file, such as an image's mask.

    Args:
        file: the one that is being read.
        otherwise: text for errors that are not `Unreadable`; {} is their first line.
    """
    try:
        yield
    except MemoryError:
        raise
    except Unreadable as error:
        raise Unreadable(str(error), error.file or file) from error
    except Exception as error:  # decoders raise all kinds of errors on a damaged file
        raise Unreadable(otherwise.format(first_line(error, file)), file) from error


def first_line(error: Exception, *files: Path) -> str:
    """The first line of an error's text, with file names in place of their paths."""
    said = next(iter(str(error).splitlines()), "") or type(error).__name__
    for file in files:
        said = said.replace(str(file), file.name)
    return said


def why_unreadable(error: Exception) -> str:
    """Why a file could not be read, in one line, for any error."""
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    return f"cannot be read ({first_line(error)})"


@dataclass(frozen=True)
class Problem:
    """A file or image that cannot be used, and why."""

    name: str
    what: str

    def __str__(self) -> str:
        return printable(f"{self.name}: {self.what}", one_line=True)


@dataclass(frozen=True)
class Row:
    """What the files say about one image; None where they say nothing.

    Attributes:
        name: unique: its file's path below the root, with "#7" for the seventh image of a file.
        hospital: where it was taken.
        patient: id of the person it shows.
        part: "train", "validation" or "test", where the data set defines them.
        size: (height, width) as it was in the file.
        links: further ids of the person, such as a study's; images that share one stay together.
        features: further values, such as {"slice": 12.0, "scanner": "Acme X"}; "slice" is its position.
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
    """The unit of decoding: a picture, a volume, or a file of many pictures.

    Attributes:
        name: the image's path below the root.
        files: the image's file, then those of its masks.
        label: its class, where the target is a class.
        hospital, patient, part: from names and lists, as in `Row`.
        stratum: `CohortSettings.sample` draws evenly over strata, such as the subtypes of a haemorrhage.
    """

    name: str
    files: tuple[Path, ...]
    label: int | None = None
    hospital: str | None = None
    patient: str | None = None
    part: str | None = None
    stratum: str = ""

    def labels(self, count: int) -> NDArray[np.int64]:
        """(count,) the label of each of its images; -1 where it has none."""
        return np.full(count, -1 if self.label is None else self.label)

    def row(self, **more: Any) -> Row:
        """The row of an image of this scan; `more` replaces fields."""
        return replace(Row(self.name, self.hospital, self.patient, self.part), **more)


@dataclass(frozen=True)
class Pictures:
    """The images of one scan.

    Attributes:
        images: (n, channels, height, width); bytes 0…255, or floating-point numbers 0…1.
        targets: (n,) classes, or (n, masks, height, width) of 0 and 1.
        rows: one for each image.
        mask_values: what each file, or array, of masks holds, before it became 0 and 1.
    """

    images: NDArray[Any]
    targets: NDArray[Any]
    rows: tuple[Row, ...]
    mask_values: tuple[frozenset[float], ...] = ()

    def at(self, kept: NDArray[np.bool_]) -> Self:
        """The images that are marked in `kept`, (n,)."""
        rows = tuple(row for row, keep in zip(self.rows, kept.tolist(), strict=True) if keep)
        return replace(self, images=self.images[kept], targets=self.targets[kept], rows=rows)

    def with_features(self, more: Mapping[str, Any]) -> Self:
        """The same images, each with these features beside its own."""
        rows = (replace(row, features={**row.features, **more}) for row in self.rows)
        return replace(self, rows=tuple(rows))


@dataclass(frozen=True)
class Measure:
    """Size and channels of an image in its file, or of the slices of a volume."""

    height: int
    width: int
    channels: int = 1


@dataclass(frozen=True)
class Catalogue:
    """What was found at a path.

    Attributes:
        kind: as in `CohortSettings.kind`.
        root: where names begin.
        layout: a sentence that describes the layout of files.
        target: what is to be predicted.
        classes: names of the classes, or of the masks.
        scans: in the order of their names.
        read: decodes one scan; raises `Unreadable`, or whatever the decoder raises, if it cannot.
        problems: found without decoding, such as a label without an image.
        notes: what a reader of results should know.
        lists: csv and json files that describe the scans.
        measure: reads the size and channels of one scan from its header; None: images for which the settings
            name no size or channels stay as they are.
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
    measure: Callable[[Scan], Measure] | None = None


def one_picture(scan: Scan, image: NDArray[Any]) -> Pictures:
    """A scan that is one image (channels, height, width), with its label."""
    return Pictures(image[None], scan.labels(1), (scan.row(size=image.shape[-2:]),))
