"""Small files that declare, or unpack to, more than a machine holds are refused before they are read."""

import gzip
import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from cohort_files import PIXELS, save
from PIL import Image
from pydicom.data import get_testdata_file
from pydicom.uid import DeflatedExplicitVRLittleEndian

from silodp.cohorts.catalogue import Scan, Unreadable
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.loading import look
from silodp.cohorts.sources.dicom import read_dicom_image
from silodp.cohorts.sources.dicom_limits import coded_shape
from silodp.cohorts.sources.folder import Folder, read_files
from silodp.cohorts.sources.limits import NUMBERS, refuse_larger, refuse_special
from silodp.cohorts.sources.nifti import read_nifti
from silodp.cohorts.sources.pixels import read_picture
from silodp.errors import InputError


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def npy(array: Any, shape: str | None = None) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    if shape is None:
        return out.getvalue()
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array.tobytes()


def refusal(path: Path) -> str:
    """Of an npz cohort, where it is looked at or where it is read."""
    settings = CohortSettings.of(kind="npz", path=str(path))
    try:
        catalogue = look(settings)
        catalogue.read(catalogue.scans[0])
    except (InputError, Unreadable) as error:
        return str(error)
    raise AssertionError("it was read")


IMAGES = np.random.default_rng(0).integers(0, 255, (6, 16, 16)).astype(np.uint8)
LABELS = np.arange(6) % 2


def test_the_limit_follows_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    refuse_larger(path, (NUMBERS,))
    with pytest.raises(Unreadable, match="at most 268,435,456 are allowed for a file of its size"):
        refuse_larger(path, (NUMBERS + 1,))
    with pytest.raises(Unreadable, match="declares 0 × 5 numbers"):
        refuse_larger(path, (0, 5))


def test_a_file_of_holes_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(Unreadable, match="and is a sparse file"):
        refuse_special(tmp_path / "a")


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(6, 60000, 60000)", "(-1, 16, 16)", "(6, 16, 17)"])
def test_an_array_that_declares_what_it_does_not_hold(shape: str, tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", image=npy(IMAGES, shape), label=npy(LABELS))
    assert "which it does not hold" in refusal(path) or "the shape" in refusal(path)


def test_an_npz_file_that_unpacks_to_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silodp.cohorts.sources.limits.NUMBERS", 10_000)
    path = npz(tmp_path / "a.npz", image=npy(np.zeros((6, 1000, 1000), np.uint8)), label=npy(LABELS))
    assert "at most" in refusal(path)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["image", "label", "patient", "extra"])
def test_pickled_objects_are_never_loaded(name: str, tmp_path: Path) -> None:
    members = {"image": npy(IMAGES), "label": npy(LABELS)}
    members[name] = npy(np.array([Trap(tmp_path / "sprung")] * 6, dtype=object))
    path = npz(tmp_path / "a.npz", **members)
    if name == "extra":  # nobody asks for it
        catalogue = look(CohortSettings.of(kind="npz", path=str(path)))
        assert "extra" not in catalogue.read(catalogue.scans[0]).rows[0].features
    else:
        assert f"the array {name} has Python objects" in refusal(path)
    (tmp_path / "whole.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert "cannot be read as an npz file" in refusal(tmp_path / "whole.npz")
    assert not (tmp_path / "sprung").exists()


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", image=npy(IMAGES), label=b"no array at all")
    assert "cannot be read as an npz file" in refusal(path)
    with zipfile.ZipFile(npz(path, image=npy(IMAGES)), "a") as file:
        file.writestr("label", b"1 0 1 0 1 0")
    assert "it holds the arrays image; an npz cohort has" in refusal(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npz")
    assert "not a regular file" in refusal(tmp_path / "a.npz")
    os.symlink("/dev/zero", tmp_path / "b.npz")
    assert "not a regular file" in refusal(tmp_path / "b.npz")


def test_an_npz_file_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    npz(tmp_path / "far/a.npz", image=npy(IMAGES), label=npy(LABELS))
    os.symlink(tmp_path / "far/a.npz", tmp_path / "b.npz")
    catalogue = look(CohortSettings.of(kind="npz", path=str(tmp_path / "b.npz")))
    assert catalogue.read(catalogue.scans[0]).rows[0].name == "b.npz#0"


def test_a_png_of_60000_squared(tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.fromarray(IMAGES[0]).save(out, "PNG")
    content = out.getvalue()
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + content[24:29]
    checked = header + struct.pack(">I", zlib.crc32(header))
    (tmp_path / "a.png").write_bytes(content[:12] + checked + content[33:])
    with pytest.raises(Unreadable, match="it declares more than 178,956,970 pixels"):
        read_picture(tmp_path / "a.png")


def test_what_only_looks_like_a_picture_is_not_given_to_other_programs(tmp_path: Path) -> None:
    """Pillow would start Ghostscript for this one."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(Unreadable, match="not a picture"):
        read_picture(tmp_path / "a.png")


def mr(**tags: Any) -> pydicom.FileDataset:
    file = pydicom.dcmread(str(get_testdata_file("MR_small.dcm")))
    for name, value in tags.items():
        setattr(file, name, value)
    return file


@pytest.mark.parametrize(
    "tags",
    [{"Rows": 60_000, "Columns": 60_000}, {"NumberOfFrames": 2_000_000_000}],
)
def test_a_dicom_file_that_declares_too_much(tags: dict[str, int], tmp_path: Path) -> None:
    mr(**tags).save_as(tmp_path / "a.dcm")
    with pytest.raises(Unreadable, match=r"it declares .* numbers; at most 268,435,456"):
        read_dicom_image(tmp_path / "a.dcm")


@pytest.mark.parametrize("name", ["MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm"])
def test_compressed_pixels_that_declare_another_size_than_the_tags(name: str, tmp_path: Path) -> None:
    content = bytearray(Path(str(get_testdata_file(name))).read_bytes())
    plain = bytes(content)
    if "jp2k" in name:
        place = content.find(b"\xff\x4f\xff\x51")
        struct.pack_into(">II", content, place + 8, 60_000, 60_000)
    else:
        place = content.find(b"\xff\xf7")
        struct.pack_into(">HH", content, place + 5, 60_000, 60_000)
    (tmp_path / "a.dcm").write_bytes(plain)
    assert read_dicom_image(tmp_path / "a.dcm").pixels.shape == (1, 1, 64, 64)
    (tmp_path / "a.dcm").write_bytes(bytes(content))
    says = "its compressed pixels are 60000 × 60000 × 1, but its tags say 64 × 64 × 1"
    with pytest.raises(Unreadable, match=says):
        read_dicom_image(tmp_path / "a.dcm")


@pytest.mark.parametrize("name", ["MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm"])
def test_compressed_pixels_that_declare_more_colours_than_there_are(name: str, tmp_path: Path) -> None:
    """Of the right height and width, and so many colours that they fill a machine."""
    content = bytearray(Path(str(get_testdata_file(name))).read_bytes())
    if "jp2k" in name:
        colours = 16_000
        struct.pack_into(">H", content, content.find(b"\xff\x4f\xff\x51") + 40, colours)
    else:
        colours = content[content.find(b"\xff\xf7") + 9] = 255
    (tmp_path / "a.dcm").write_bytes(bytes(content))
    says = f"its compressed pixels are 64 × 64 × {colours}, but its tags say 64 × 64 × 1"
    with pytest.raises(Unreadable, match=says):
        read_dicom_image(tmp_path / "a.dcm")


def test_the_size_in_a_jpeg_is_pillows() -> None:
    for mode, size in (("L", (17, 31)), ("RGB", (64, 48))):
        out = io.BytesIO()
        Image.new(mode, size).save(out, "JPEG", progressive=True)
        assert coded_shape(out.getvalue()) == (size[1], size[0], len(mode))
    assert coded_shape(b"RLE") is None


def test_a_deflated_dicom_file_that_unpacks_to_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = mr(ImageComments="x")
    file.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    file.PixelData = bytes(10_000_000)
    file.save_as(tmp_path / "a.dcm")
    assert (tmp_path / "a.dcm").stat().st_size < 20_000
    assert read_dicom_image(tmp_path / "a.dcm").pixels.shape == (1, 1, 64, 64)
    monkeypatch.setattr("silodp.cohorts.sources.limits.NUMBERS", 1_000_000)
    with pytest.raises(Unreadable, match="it unpacks to more than 1,000,000 bytes"):
        read_dicom_image(tmp_path / "a.dcm")


def test_a_volume_that_declares_too_much(tmp_path: Path) -> None:
    content = bytearray(nibabel.Nifti1Image(np.ones((4, 4, 4), np.int16), np.eye(4)).to_bytes())
    struct.pack_into("<4h", content, 40, 3, 30_000, 30_000, 30_000)
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(Unreadable, match="it declares 30000 × 30000 × 30000 numbers; at most 268,435,456"):
        read_nifti(Scan("a", (tmp_path / "a.nii.gz",), 0))


def test_extensions_of_a_volume_are_not_unpacked(tmp_path: Path) -> None:
    """One that declares 2 GB would be read as far as the file goes."""
    content = bytearray(
        nibabel.Nifti1Image(np.arange(64, dtype=np.int16).reshape(4, 4, 4), np.eye(4)).to_bytes()
    )
    content[348:352] = b"\1\0\0\0"
    content[352:352] = struct.pack("<ii", 2**31 - 16, 4) + bytes(8)
    struct.pack_into("<f", content, 108, 368.0)
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(bytes(content)))
    assert read_nifti(Scan("a", (tmp_path / "a.nii.gz",), 0)).images.shape == (4, 1, 4, 4)


def fail(*_: Any, **__: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("a.nii", "nifti.as_unit"),
        ("a.nii", "nifti._mask"),
        ("a.dcm", "dicom.places_of"),
        ("a.dcm", "dicom_pixels._pixels"),
    ],
)
def test_a_lack_of_memory_is_not_called_damage(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, name, PIXELS if name == "a.dcm" else np.arange(48, dtype=np.int16).reshape(4, 4, 3))
    monkeypatch.setattr(f"silodp.cohorts.sources.{place}", fail)
    with pytest.raises(MemoryError):
        read_files(Scan("a", (path,) if name == "a.dcm" else (path, path)), Folder())
