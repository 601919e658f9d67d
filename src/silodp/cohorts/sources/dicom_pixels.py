"""The pixels of a DICOM file: decoded, then in the scanner's units or as colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Unreadable
from silodp.cohorts.sources.decoder_process import Ended, decode_apart

if TYPE_CHECKING:
    from pydicom import Dataset, FileDataset
    from pydicom.pixels.decoders.base import Decoder


AIR = -1024.0  # Hounsfield units; nothing is thinner
PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")


def decode(file: FileDataset) -> NDArray[Any]:
    """Decodes to (frames, height, width) stored values, or (frames, height, width, 3) colours."""
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
        raise Unreadable(
            f"its transfer syntax {form} cannot be decoded; export it again, uncompressed"
        ) from None
    if not decoder.is_available:
        raise Unreadable(f"its pixels are compressed as {form}; to decode them, {_way_out(decoder)}")
    if not syntax.is_compressed and "PixelData" in file:
        there, wanted = len(file.PixelData), get_expected_length(file)
        if there < wanted:
            raise Unreadable(f"its pixel data are cut off after {there} of {wanted} bytes")
    try:
        stored = _pixels(file)
    except MemoryError:
        raise
    except Ended as error:
        raise Unreadable(f"its pixels ({form}) cannot be decoded: {error}") from error
    except Exception as error:
        hint = f", or needs another decoder ({_way_out(decoder)})" if decoder.missing_dependencies else ""
        reason = reason_of(error).rpartition("plugins: ")[2]  # then each decoder's own
        raise Unreadable(f"its pixels ({form}) cannot be decoded: {reason}; it is damaged{hint}") from error
    samples = file.SamplesPerPixel
    if file.PhotometricInterpretation == "PALETTE COLOR":
        stored, samples = apply_color_lut(stored, file)[..., :3], 3
    return stored.reshape(-1, *stored.shape[-2 if samples == 1 else -3 :])


def _pixels(file: FileDataset, **options: Any) -> NDArray[Any]:
    """Decodes the declared frames; further data are ignored."""
    from pydicom.pixels.utils import pixel_array
    from pydicom.uid import RLELossless

    syntax = file.file_meta.TransferSyntaxUID
    if syntax.is_encapsulated and syntax != RLELossless:
        return decode_apart(str(file.filename), allow_excess_frames=False, **options)
    return pixel_array(file, allow_excess_frames=False, **options)


def _way_out(decoder: Decoder) -> str:
    """Which packages decode this, from pydicom's list: `gdcm - requires gdcm>=3.0.10`."""
    packages = [line.partition(" requires ")[2] for line in decoder.missing_dependencies]
    return "install " + ", or ".join(packages).replace("gdcm>", "python-gdcm>")


def colours(file: FileDataset, stored: NDArray[Any]) -> NDArray[np.float32]:
    palette = file.PhotometricInterpretation == "PALETTE COLOR"
    most = np.iinfo(stored.dtype).max if palette else 2 ** int(file.BitsStored) - 1
    return np.ascontiguousarray(stored.transpose(0, 3, 1, 2) / np.float32(most), dtype=np.float32)


def units_of(
    file: FileDataset, stored: NDArray[Any], tags: Sequence[Sequence[Dataset]], modality: str | None
) -> NDArray[np.float32]:
    from pydicom.pixels.processing import apply_modality_lut

    if "ModalityLUTSequence" in file:
        units = apply_modality_lut(stored, file).astype(np.float64)
    else:
        slope, intercept = (
            np.array([number_of(find_tag(places, name), missing) for places in tags])[:, None, None]
            for name, missing in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
        )
        numbers = stored.astype(np.float64)
        unsigned = file.get("BitsStored") == 12 and file.PixelRepresentation == 0
        if modality == "CT" and unsigned and intercept[0] > -100:
            # Some scanners of the RSNA set wrote signed values and declared them unsigned: −1 reads as 4095.
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
    """Which pixels are padding; None if none is declared."""
    values = [
        int(number)
        for name in ("PixelPaddingValue", "PixelPaddingRangeLimit")
        if (number := number_of(file.get(name))) is not None
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


def places_of(file: FileDataset, frame: int) -> Iterator[Dataset]:
    """Yields the data sets that may have a frame's tags: its own group, the shared group, the file."""
    for name, index in (("PerFrameFunctionalGroupsSequence", frame), ("SharedFunctionalGroupsSequence", 0)):
        groups = file.get(name) or ()
        if index < len(groups):
            yield from (element.value[0] for element in groups[index] if element.VR == "SQ" and element.value)
    yield file


def find_tag(places: Sequence[Dataset], name: str) -> Any:
    found = (place.get(name) for place in places)
    return next((value for value in found if value is not None), None)


def number_of(value: Any, missing: float | None = None) -> Any:
    """The first number of a tag with one or several numbers."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0]
    return missing if value is None else float(value)


def reason_of(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
