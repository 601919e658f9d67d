"""DICOM files as images: in the scanner's units, then as grey 0…1.

- CT in three channels has the brain, subdural and bone windows; in one channel the window that the file
  names, or the brain window. For heads, one channel is always the brain window.
- Colours (ultrasound, photographs) stay three channels. Everything else (MR, CR, DX, …) is scaled between two
  percentiles of its own values, those of all frames where a file has several.
- Each frame of a file with several is one image.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Measure, Pictures, Scan, Unreadable
from silodp.cohorts.sources.dicom_limits import refuse_deflated_beyond_limit, refuse_large
from silodp.cohorts.sources.dicom_pixels import (
    colours,
    decode,
    find_tag,
    number_of,
    places_of,
    reason_of,
    units_of,
)
from silodp.cohorts.sources.pixels import as_unit
from silodp.cohorts.sources.windows import head_windows, window

if TYPE_CHECKING:
    from pydicom import Dataset, FileDataset

DICOM = (".dcm", ".dicom")

FIRST_TAGS = (b"\x02\x00", b"\x08\x00", b"\x00\x08")  # the first bytes of a file without preamble


@dataclass(frozen=True)
class DicomImage:
    """The content of one file; None for values that it does not have.

    Attributes:
        pixels: (frames, 1, height, width) in the scanner's units, which are Hounsfield units for CT; colours
            are (frames, 3, height, width) of 0…1.
        modality: such as "CT" or "MR".
        patient_id: as in the file.
        study: its id; a study is of one patient.
        positions: of each frame along the patient, or its number in the series or file.
        scanner: manufacturer and model.
        window: (level, width) that the file names for display.
    """

    pixels: NDArray[np.float32]
    modality: str | None
    patient_id: str | None
    study: str | None
    positions: tuple[float | None, ...]
    scanner: str | None
    window: tuple[float, float] | None


def read_dicom(scan: Scan, channels: int | None, *, head: bool = False) -> Pictures:
    """A scan whose first file is DICOM, with its label.

    Args:
        scan: its patient overrides the one in the file, which then becomes a link.
        channels: 3 for CT with three windows. Other images keep their channels.
        head: whether CT in one channel has the brain window, whatever window the file names.
    """
    image = read_dicom_image(scan.files[0])
    images = _grey(image, channels, head)
    frames = len(images)
    rows = []
    for number, position in enumerate(image.positions, start=1):
        known = {"slice": position, "scanner": image.scanner}
        rows.append(
            scan.row(
                name=scan.name if frames == 1 else f"{scan.name}#{number}",
                patient=scan.patient or image.patient_id or image.study,
                links=_links(image, named=scan.patient is not None),
                size=images.shape[-2:],
                features={name: value for name, value in known.items() if value is not None},
            )
        )
    return Pictures(images, scan.labels(frames), tuple(rows))


def _links(image: DicomImage, named: bool) -> tuple[str, ...]:
    """Ids that connect files whose patient is named differently, or in some files only."""
    ids = {"study": image.study, "id": image.patient_id if named else None}
    return tuple(f"{kind} {number}" for kind, number in ids.items() if number)


def has_dicom_mark(path: Path) -> bool:
    """Whether a file without an alphabetic extension (`IM0001`, `1.2.840.10`) starts like DICOM."""
    if any(character.isalpha() for character in path.suffix) and path.suffix.lower() != ".ima":
        return False
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def read_dicom_image(path: Path) -> DicomImage:
    """Decodes one file; raises `Unreadable` with the reason if it is damaged or not an image."""
    file = _open(path)
    try:
        refuse_large(path, file)
        return _image(file)
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # pydicom raises many kinds on tags that are not what they should be
        raise Unreadable(f"its tags are damaged: {reason_of(error)}") from error


def measure_dicom(path: Path) -> Measure:
    """Reads size and channels from the header."""
    file = _open(path)
    coloured = file.get("SamplesPerPixel") == 3 or file.get("PhotometricInterpretation") == "PALETTE COLOR"
    return Measure(int(file.Rows), int(file.Columns), 3 if coloured else 1)


def _grey(image: DicomImage, channels: int | None, head: bool) -> NDArray[np.float32]:
    if image.pixels.shape[1] == 3:
        return image.pixels
    if image.modality != "CT":
        return as_unit(image.pixels)
    if channels != 3 and not head and image.window is not None:
        return window(image.pixels, *image.window)
    return head_windows(image.pixels[:, 0], 3 if channels == 3 else 1)


def _open(path: Path) -> FileDataset:
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian

    _silence()
    try:
        try:
            refuse_deflated_beyond_limit(path)
            file = dcmread(path)
        except InvalidDicomError:
            # Old files have no preamble. They begin with a tag of group 2 or 8, which no text does.
            with path.open("rb") as opened:
                if opened.read(2) not in FIRST_TAGS:
                    raise Unreadable("it is not a DICOM file") from None
            file = dcmread(path, force=True)
        if "TransferSyntaxUID" not in file.file_meta:  # then pydicom has detected the encoding
            little = file.original_encoding[1]
            file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
        return file
    except (Unreadable, OSError):
        raise
    except Exception as error:  # a damaged length raises MemoryError, too
        raise Unreadable(f"it is a damaged DICOM file: {reason_of(error)}") from error


@cache
def _silence() -> None:
    """Silences pydicom's warnings about odd tags; files that cannot be used are reported anyway."""
    warnings.filterwarnings("ignore", category=UserWarning, module="pydicom")


def _image(file: FileDataset) -> DicomImage:
    stored = decode(file)
    modality = _text(file, "Modality")
    frames = len(stored)
    tags = [tuple(places_of(file, frame)) for frame in range(frames)]
    pixels = colours(file, stored) if stored.ndim == 4 else units_of(file, stored, tags, modality)[:, None]
    level, width = (number_of(find_tag(tags[0], name)) for name in ("WindowCenter", "WindowWidth"))
    scanner = " ".join(filter(None, (_text(file, "Manufacturer"), _text(file, "ManufacturerModelName"))))
    return DicomImage(
        pixels,
        modality,
        _text(file, "PatientID"),
        _text(file, "StudyInstanceUID"),
        tuple(_position(places, number if frames > 1 else None) for number, places in enumerate(tags, 1)),
        scanner or None,
        (level, width) if level is not None and width is not None and width > 0 else None,
    )


def _position(places: Sequence[Dataset], frame: int | None) -> float | None:
    if frame is not None:
        places = places[:-1]  # what the file says of itself holds for its first frame only
    where = find_tag(places, "ImagePositionPatient")
    candidates = (
        where[2] if where is not None and len(where) == 3 else None,
        find_tag(places, "SliceLocation"),
        frame if frame is not None else find_tag(places, "InstanceNumber"),
    )
    numbers = (number_of(value) for value in candidates)
    return next((number for number in numbers if number is not None and math.isfinite(number)), None)


def _text(file: FileDataset, name: str) -> str | None:
    return str(file.get(name) or "").strip() or None
