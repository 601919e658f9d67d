"""Limits on the size that a DICOM file decompresses and decodes to, checked before it is allocated."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from silodp.cohorts.catalogue import Unreadable
from silodp.cohorts.sources.limits import most_numbers, refuse_larger, times

if TYPE_CHECKING:
    from pydicom import FileDataset

FRAME_MARKS = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}  # of JPEG and JPEG-LS: a frame's size follows
MOST_COLOURS = 4


def refuse_deflated_beyond_limit(path: Path) -> None:
    """Refuses a deflated file that decompresses to too much; pydicom does not check this."""
    from pydicom.filereader import _read_file_meta_info, read_preamble
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    with path.open("rb") as file:
        read_preamble(file, force=False)
        if _read_file_meta_info(file).get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
            return
        most, unpacking = most_numbers(path.stat()), zlib.decompressobj(-zlib.MAX_WBITS)
        unpacking.decompress(file.read(), most)
    if unpacking.unconsumed_tail:
        raise Unreadable(f"it unpacks to more than {most:,} bytes, the limit for a file of its size")


def refuse_large(path: Path, file: FileDataset) -> None:
    """Refuses too large images, by their tags and by the headers of compressed frames, which decoders use."""
    from pydicom.encaps import generate_frames

    if "Rows" not in file or "Columns" not in file:
        return  # not an image; reported elsewhere
    frames, samples = int(file.get("NumberOfFrames") or 1), int(file.get("SamplesPerPixel") or 1)
    refuse_larger(path, (frames, int(file.Rows), int(file.Columns), samples))
    if "PixelData" in file and file.file_meta.TransferSyntaxUID.is_encapsulated:
        for frame in generate_frames(file.PixelData, number_of_frames=frames):
            found = coded_shape(frame)
            if found is not None and (found[:2] != (file.Rows, file.Columns) or found[2] > MOST_COLOURS):
                tags = times((file.Rows, file.Columns, samples))
                raise Unreadable(f"its compressed pixels are {times(found)}, but its tags say {tags}")


def coded_shape(frame: bytes) -> tuple[int, int, int] | None:
    """(height, width, colours) that a JPEG, JPEG-LS or JPEG 2000 frame declares; None where it is neither."""
    start = frame.find(b"\xff\x4f\xff\x51", 0, 4096)  # JPEG 2000, perhaps in a box
    if start >= 0:
        right, down, left, up = struct.unpack_from(">4I", frame.ljust(start + 42, b"\0"), start + 8)
        (colours,) = struct.unpack_from(">H", frame.ljust(start + 42, b"\0"), start + 40)
        return down - up, right - left, colours
    if not frame.startswith(b"\xff\xd8"):
        return None
    place = 2
    while place + 10 <= len(frame):
        mark = frame[place + 1]
        if frame[place] != 0xFF or mark == 0xFF:
            place += 1
        elif mark in FRAME_MARKS:
            height, width, colours = struct.unpack_from(">HHB", frame, place + 5)
            return height, width, colours
        else:
            place += 2 + int.from_bytes(frame[place + 2 : place + 4])
    return None
