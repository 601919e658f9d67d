"""DICOM files as pictures: in the scanner's units, then as grey 0…1.

- CT in three channels is seen through the brain, subdural and bone windows; in one channel through the window
  that the file itself asks for, or the brain window. For heads, one channel is always the brain window.
- Colours (ultrasound, photographs) stay three channels. Everything else (MR, CR, DX, …) is spread between two
  percentiles of its own numbers, those of all frames where a file has several.
- Each frame of a file with several is one image.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Measure, Pictures, Scan, Unreadable
from silodp.cohorts.sources.decoder_process import Ended, decode_apart
from silodp.cohorts.sources.dicom_limits import refuse_bomb, refuse_large
from silodp.cohorts.sources.pixels import as_unit
from silodp.cohorts.sources.windows import head_windows, window

if TYPE_CHECKING:
    from pydicom import Dataset, FileDataset
    from pydicom.pixels.decoders.base import Decoder

DICOM = (".dcm", ".dicom")
AIR = -1024.0  # Hounsfield units; nothing is thinner

PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
FIRST_TAGS = (b"\x02\x00", b"\x08\x00", b"\x00\x08")  # how a file without preamble begins


@dataclass(frozen=True)
class DicomImage:
    """What one file holds. None: the file does not say.

    Attributes:
        pixels: (frames, 1, height, width) in the scanner's units, which are Hounsfield units for CT; colours
            are (frames, 3, height, width) of 0…1.
        modality: such as "CT" or "MR".
        patient_id: their number.
        study: its number; a study is of one patient.
        positions: where each frame lies along the patient, or its place in the series or file.
        scanner: manufacturer and model.
        window: (level, width) that the file asks to be shown with.
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
        scan: a patient that it names goes before the one in the file, which then is a link.
        channels: 3 for CT through three windows. Other pictures have the channels that they have.
        head: CT in one channel is seen through the brain window, whatever window the file asks for.
    """
    image = read_dicom_image(scan.files[0])
    images = _grey(image, channels, head)
    frames = len(images)
    targets = np.full(frames, -1 if scan.label is None else scan.label)
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
    return Pictures(images, targets, tuple(rows))


def _links(image: DicomImage, named: bool) -> tuple[str, ...]:
    """What ties files together whose patient is named otherwise, or in some files only."""
    ids = {"study": image.study, "id": image.patient_id if named else None}
    return tuple(f"{kind} {number}" for kind, number in ids.items() if number)


def has_dicom_mark(path: Path) -> bool:
    """Whether a file without an ending of letters (`IM0001`, `1.2.840.10`) is DICOM by its first bytes."""
    if any(character.isalpha() for character in path.suffix) and path.suffix.lower() != ".ima":
        return False
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def read_dicom_image(path: Path) -> DicomImage:
    """One file, decoded; raises `Unreadable` with the reason if it is damaged or not an image."""
    file = _open(path)
    try:
        refuse_large(path, file)
        return _image(file)
    except Unreadable:
        raise
    except Exception as error:  # pydicom raises many kinds on tags that are not what they should be
        raise Unreadable(f"its tags are damaged: {_reason(error)}") from error


def measure_dicom(path: Path) -> Measure:
    """From its header."""
    file = _open(path)
    return Measure(int(file.Rows), int(file.Columns), 3 if file.get("SamplesPerPixel") == 3 else 1)


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
            refuse_bomb(path)
            file = dcmread(path)
        except InvalidDicomError:
            # Old files have no preamble. They begin with a tag of group 2 or 8, which no text does.
            with path.open("rb") as opened:
                if opened.read(2) not in FIRST_TAGS:
                    raise Unreadable("it is not a DICOM file") from None
            file = dcmread(path, force=True)
        if "TransferSyntaxUID" not in file.file_meta:  # then pydicom has found out how it is written
            little = file.original_encoding[1]
            file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
        return file
    except (Unreadable, OSError):
        raise
    except Exception as error:
        raise Unreadable(f"it is a damaged DICOM file: {_reason(error)}") from error


@cache
def _silence() -> None:
    """pydicom warns about every oddity of every file; what cannot be used is reported by name anyway."""
    warnings.filterwarnings("ignore", category=UserWarning, module="pydicom")


def _image(file: FileDataset) -> DicomImage:
    stored = _decode(file)
    modality = _text(file, "Modality")
    frames = len(stored)
    tags = [tuple(_places(file, frame)) for frame in range(frames)]
    pixels = _colours(file, stored) if stored.ndim == 4 else _units(file, stored, tags, modality)[:, None]
    level, width = (_number(_find(tags[0], name)) for name in ("WindowCenter", "WindowWidth"))
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


def _decode(file: FileDataset) -> NDArray[Any]:
    """(frames, height, width) stored numbers, or (frames, height, width, 3) colours."""
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import get_expected_length

    if not len(file):  # pydicom drops everything where compressed pixels end too early
        raise Unreadable("it is cut off")
    if "Rows" not in file:
        raise Unreadable("it holds no image, or is cut off before it")
    if not any(name in file for name in PIXELS):
        raise Unreadable("its pixel data are missing or cut off")
    syntax = file.file_meta.TransferSyntaxUID
    form = f"{syntax.name} ({syntax})"
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise Unreadable(f"its form {form} cannot be decoded; export it again, uncompressed") from None
    if not decoder.is_available:
        raise Unreadable(f"its pixels are compressed as {form}; to decode them, {_way_out(decoder)}")
    if not syntax.is_compressed and "PixelData" in file:
        there, wanted = len(file.PixelData), get_expected_length(file)
        if there < wanted:
            raise Unreadable(f"its pixel data are cut off after {there} of {wanted} bytes")
    try:
        stored = _pixels(file)
    except Ended as error:
        raise Unreadable(f"its pixels ({form}) cannot be decoded: {error}") from error
    except Exception as error:
        hint = f", or needs another decoder ({_way_out(decoder)})" if decoder.missing_dependencies else ""
        reason = _reason(error).rpartition("plugins: ")[2]  # then each decoder's own
        raise Unreadable(f"its pixels ({form}) cannot be decoded: {reason}; it is damaged{hint}") from error
    samples = file.SamplesPerPixel
    if file.PhotometricInterpretation == "PALETTE COLOR":
        stored, samples = apply_color_lut(stored, file)[..., :3], 3
    return stored.reshape(-1, *stored.shape[-2 if samples == 1 else -3 :])


def _pixels(file: FileDataset, **options: Any) -> NDArray[Any]:
    """The stored numbers. What follows the frames that the file speaks of is no picture."""
    from pydicom.pixels.utils import pixel_array
    from pydicom.uid import RLELossless

    syntax = file.file_meta.TransferSyntaxUID
    if syntax.is_encapsulated and syntax != RLELossless:
        return decode_apart(str(file.filename), allow_excess_frames=False, **options)
    return pixel_array(file, allow_excess_frames=False, **options)


def _way_out(decoder: Decoder) -> str:
    """Which packages decode this, as pydicom says: `gdcm - requires gdcm>=3.0.10`."""
    packages = [line.partition(" requires ")[2] for line in decoder.missing_dependencies]
    return "install " + ", or ".join(packages).replace("gdcm>", "python-gdcm>")


def _colours(file: FileDataset, stored: NDArray[Any]) -> NDArray[np.float32]:
    palette = file.PhotometricInterpretation == "PALETTE COLOR"
    most = np.iinfo(stored.dtype).max if palette else 2 ** int(file.BitsStored) - 1
    return np.ascontiguousarray(stored.transpose(0, 3, 1, 2) / np.float32(most), dtype=np.float32)


def _units(
    file: FileDataset, stored: NDArray[Any], tags: Sequence[Sequence[Dataset]], modality: str | None
) -> NDArray[np.float32]:
    from pydicom.pixels.processing import apply_modality_lut

    if "ModalityLUTSequence" in file:
        units = apply_modality_lut(stored, file).astype(np.float64)
    else:
        slope, intercept = (
            np.array([_number(_find(places, name), missing) for places in tags])[:, None, None]
            for name, missing in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
        )
        numbers = stored.astype(np.float64)
        unsigned = file.get("BitsStored") == 12 and file.PixelRepresentation == 0
        if modality == "CT" and unsigned and intercept[0] > -100:
            # Some scanners of the RSNA set wrote signed numbers and declared them unsigned: −1 reads as 4095.
            # That is how they are known: unsigned numbers that start near 0 HU would have no room for air.
            # Their numbers run from −1000 to 3095, so all above that are negative ones.
            numbers, intercept = (numbers + 1000) % 4096 - 1000, np.zeros(1)
        units = numbers * slope + intercept
    padding = _padding(file, stored)
    inside = units[~padding] if padding is not None and not padding.all() else units
    low = inside.min()
    if modality == "CT":
        low = AIR
        units = np.maximum(units, AIR)  # scanners fill what lies outside their circle with −2000 or −3024
    elif file.PhotometricInterpretation == "MONOCHROME1":  # low numbers are meant to be bright
        units = low + inside.max() - units
    if padding is not None:
        units[padding] = low
    return units.astype(np.float32)


def _padding(file: FileDataset, stored: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Which pixels only fill the rectangle around the picture."""
    values = [
        int(number)
        for name in ("PixelPaddingValue", "PixelPaddingRangeLimit")
        if (number := _number(file.get(name))) is not None
    ]
    if not values or stored.dtype.kind == "f":
        return None
    bits = int(file.BitsStored)
    lowest = -(2 ** (bits - 1)) if file.PixelRepresentation else 0
    words = stored
    if not all(lowest <= value < lowest + 2**bits for value in values):
        # It uses bits that pixels do not use and that decoding cuts off: −2000 in an unsigned 12-bit file.
        words = _pixels(file, correct_unused_bits=False).reshape(stored.shape)
    wrapped = np.array(values).astype(words.dtype)
    padding: NDArray[np.bool_] = (words >= wrapped.min()) & (words <= wrapped.max())
    return padding


def _places(file: FileDataset, frame: int) -> Iterator[Dataset]:
    """Where a frame's tags may stand: enhanced files keep them in groups, the frame's own or all frames'."""
    for name, index in (("PerFrameFunctionalGroupsSequence", frame), ("SharedFunctionalGroupsSequence", 0)):
        groups = file.get(name) or ()
        if index < len(groups):
            yield from (element.value[0] for element in groups[index] if element.VR == "SQ" and element.value)
    yield file


def _find(places: Sequence[Dataset], name: str) -> Any:
    found = (place.get(name) for place in places)
    return next((value for value in found if value is not None), None)


def _number(value: Any, missing: float | None = None) -> Any:
    """The first number of a tag with one or several."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0]
    return missing if value is None else float(value)


def _position(places: Sequence[Dataset], frame: int | None) -> float | None:
    if frame is not None:
        places = places[:-1]  # what the file says of itself holds for its first frame only
    where = _find(places, "ImagePositionPatient")
    candidates = (
        where[2] if where is not None and len(where) == 3 else None,
        _find(places, "SliceLocation"),
        frame if frame is not None else _find(places, "InstanceNumber"),
    )
    numbers = (_number(value) for value in candidates)
    return next((number for number in numbers if number is not None and math.isfinite(number)), None)


def _text(file: FileDataset, name: str) -> str | None:
    return str(file.get(name) or "").strip() or None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
