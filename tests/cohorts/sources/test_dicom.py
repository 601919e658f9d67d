"""DICOM files that the tests write, byte by byte as scanners do, read back as Hounsfield units and grey."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from cohort_files import dicom, save_dicom
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.pixels import get_decoder
from pydicom.uid import (
    MPEG4HP41,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGExtended12Bit,
    JPEGLSLossless,
    RLELossless,
)

from silodp.cohorts.catalogue import Scan, Unreadable
from silodp.cohorts.sources.dicom import DicomImage, _silence, measure_dicom, read_dicom, read_dicom_image
from silodp.cohorts.sources.windows import WINDOWS, head_windows, window


def image_of(dataset: Dataset, folder: Path) -> DicomImage:
    return read_dicom_image(save_dicom(folder / "a.dcm", dataset))


def units_of(dataset: Dataset, folder: Path) -> NDArray[np.float32]:
    """(height, width) of a file with one grey frame."""
    return image_of(dataset, folder).pixels[0, 0]


def refusal(path: Path) -> str:
    with pytest.raises(Unreadable) as caught:
        read_dicom_image(path)
    return str(caught.value)


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydicom")  # files are odd on purpose here

SIGNED = np.array([[-1000, 0, 40], [80, 1000, 2000]], dtype=np.int16)


def test_windows_are_straight_lines_between_black_and_white() -> None:
    units = np.array([[-1000.0, 0.0, 20.0], [40.0, 80.0, 3000.0]])
    brain, subdural, bone = head_windows(units)
    # Brain 0…80, subdural −20…180, bone −800…2000.
    assert brain == pytest.approx(np.array([[0, 0, 0.25], [0.5, 1, 1]]))
    assert subdural == pytest.approx(np.array([[0, 0.1, 0.2], [0.3, 0.5, 1]]))
    assert bone == pytest.approx(np.array([[0, 800 / 2800, 820 / 2800], [0.3, 880 / 2800, 1]]))
    assert brain.dtype == np.float32
    assert head_windows(units, 1).shape == (1, 2, 3)
    assert head_windows(np.zeros((5, 2, 3)), 3).shape == (5, 3, 2, 3)
    assert WINDOWS == ((40, 80), (80, 200), (600, 2800))


@given(st.floats(-2000, 4000), st.floats(-1000, 1000), st.floats(1, 4000))
def test_a_window_is_symmetric_about_its_level(unit: float, level: float, width: float) -> None:
    pair = window(np.array([unit, 2 * level - unit]), level, width)
    assert pair.sum() == pytest.approx(1, abs=1e-3)


def test_rescaling_to_hounsfield_units(tmp_path: Path) -> None:
    stored = np.array([[0, 1024, 1064], [3000, 24, 2000]], dtype=np.uint16)
    dataset = dicom(stored, 16, RescaleSlope="1", RescaleIntercept="-1024")
    assert units_of(dataset, tmp_path).tolist() == [[-1024, 0, 40], [1976, -1000, 976]]
    dataset.RescaleSlope = "0.5"
    assert units_of(dataset, tmp_path).tolist() == [[-1024, -512, -492], [476, -1012, -24]]


def test_missing_rescale_tags_leave_the_numbers_as_they_are(tmp_path: Path) -> None:
    assert units_of(dicom(SIGNED), tmp_path).tolist() == SIGNED.tolist()
    half = dicom(SIGNED, RescaleIntercept="-10")
    assert units_of(half, tmp_path).tolist() == np.maximum(SIGNED - 10, -1024).tolist()
    half = dicom(SIGNED, RescaleSlope="2", RescaleIntercept="")
    assert units_of(half, tmp_path).tolist() == np.maximum(SIGNED * 2, -1024).tolist()


@pytest.mark.parametrize("intercept", ["0", "1", None])
def test_signed_numbers_declared_unsigned(tmp_path: Path, intercept: str | None) -> None:
    """The RSNA set: 12 bits, declared unsigned, but −1 was written as 4095."""
    signed = np.array([[-1000, -1, 0], [40, 1500, 3095]])
    stored = (signed % 4096).astype(np.uint16)
    assert stored.tolist() == [[3096, 4095, 0], [40, 1500, 3095]]
    dataset = dicom(stored, 12, RescaleSlope="1")
    if intercept is not None:
        dataset.RescaleIntercept = intercept
    assert units_of(dataset, tmp_path).tolist() == signed.tolist()


def test_only_12_bit_unsigned_ct_without_room_for_air_is_wrapped(tmp_path: Path) -> None:
    stored = np.array([[0, 4000], [100, 2000]], dtype=np.uint16)
    for plain in (
        dicom(stored, 12, RescaleIntercept="-1000"),
        dicom(stored, 12, RescaleIntercept="-100"),
        dicom(stored, 16, RescaleIntercept="0"),
        dicom(stored.astype(np.int16), 13, RescaleIntercept="0"),
        dicom(stored, 12, Modality="MR"),
    ):
        first = float(plain.get("RescaleIntercept", 0))
        assert units_of(plain, tmp_path).tolist() == (stored + first).tolist()
    edge = dicom(stored, 12, RescaleIntercept="-99")
    assert units_of(edge, tmp_path).tolist() == [[0, -96], [100, 2000]]
    signed = np.array([[-1010, 40], [0, 2000]], dtype=np.int16)
    assert units_of(dicom(signed, 12), tmp_path).tolist() == signed.tolist()


def test_padding_of_ct_is_air(tmp_path: Path) -> None:
    signed = np.array([[-2000, 1064], [24, 5000]], dtype=np.int16)
    dataset = dicom(signed, RescaleIntercept="-1024", PixelPaddingValue=-2000)
    assert units_of(dataset, tmp_path).tolist() == [[-1024, 40], [-1000, 3976]]
    del dataset.PixelPaddingValue  # not declared, but below air all the same
    assert units_of(dataset, tmp_path).tolist() == [[-1024, 40], [-1000, 3976]]
    dataset.PixelPaddingValue, dataset.PixelPaddingRangeLimit = 4900, 5100
    dataset["PixelPaddingValue"].VR = dataset["PixelPaddingRangeLimit"].VR = "SS"
    assert units_of(dataset, tmp_path).tolist() == [[-1024, 40], [-1000, -1024]]


def test_padding_in_bits_that_pixels_do_not_use(tmp_path: Path) -> None:
    """−2000 in a 16-bit word is 2096 in the lower 12 bits, and 2096 may be a true pixel."""
    stored = np.array([[-2000 % 65536, 2096], [1024, 0]], dtype=np.uint16)
    dataset = dicom(stored, 12, RescaleIntercept="-1024", PixelPaddingValue=-2000 % 65536)
    assert units_of(dataset, tmp_path).tolist() == [[-1024, 1072], [0, -1024]]


def test_padding_elsewhere_is_as_dark_as_the_picture_gets(tmp_path: Path) -> None:
    stored = np.array([[60000, 7], [9, 11]], dtype=np.uint16)
    dataset = dicom(stored, Modality="MR", PixelPaddingValue=60000)
    assert units_of(dataset, tmp_path).tolist() == [[7, 7], [9, 11]]
    dataset.PhotometricInterpretation = "MONOCHROME1"
    assert units_of(dataset, tmp_path).tolist() == [[7, 11], [9, 7]]
    dataset = dicom(np.full((2, 2), 5, np.uint16), Modality="MR", PixelPaddingValue=5)
    assert units_of(dataset, tmp_path).tolist() == [[5, 5], [5, 5]]


def test_floating_point_pixels(tmp_path: Path) -> None:
    numbers = np.array([[0.25, 0.5], [-2.0, 8.0]], dtype=np.float32)
    dataset = dicom(numbers, 32, Modality="OT", PixelPaddingValue=8)
    del dataset.PixelData, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation
    dataset.FloatPixelData = numbers.tobytes()
    dataset["PixelPaddingValue"].VR = "US"
    assert units_of(dataset, tmp_path).tolist() == numbers.tolist()
    dataset.Modality = "CT"
    assert units_of(dataset, tmp_path).tolist() == numbers.tolist()


def test_monochrome1_is_inverted_except_in_ct(tmp_path: Path) -> None:
    stored = np.array([[0, 10], [20, 100]], dtype=np.uint16)
    film = dicom(stored, Modality="DX", PhotometricInterpretation="MONOCHROME1")
    assert units_of(film, tmp_path).tolist() == [[100, 90], [80, 0]]
    head = dicom(stored, PhotometricInterpretation="MONOCHROME1", RescaleIntercept="-1024")
    assert units_of(head, tmp_path).tolist() == (stored - 1024.0).tolist()


def test_a_modality_lut_is_applied(tmp_path: Path) -> None:
    table = Dataset()
    table.LUTDescriptor = [4, 0, 16]
    table.ModalityLUTType = "US"
    table.LUTData = np.array([5, 50, 500, 5000], dtype=np.uint16).tobytes()
    table["LUTDescriptor"].VR, table["LUTData"].VR = "US", "OW"
    dataset = dicom(np.array([[0, 1], [2, 3]], dtype=np.uint16), Modality="CR", ModalityLUTSequence=[table])
    assert units_of(dataset, tmp_path).tolist() == [[5, 50], [500, 5000]]


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless])
@pytest.mark.parametrize("kind", [np.int16, np.uint16])
def test_lossless_compression(tmp_path: Path, syntax: str, kind: type) -> None:
    pixels = np.random.default_rng(3).integers(0, 2000, (40, 48)).astype(kind)
    dataset = dicom(pixels, RescaleIntercept="-1024")
    dataset.compress(syntax)
    assert units_of(dataset, tmp_path).tolist() == (pixels.astype(float) - 1024).tolist()


@pytest.mark.parametrize(
    "syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian]
)
def test_every_way_to_write_it_down(tmp_path: Path, syntax: str) -> None:
    dataset = dicom(SIGNED)
    dataset["PixelData"].VR = "OW"
    if syntax == ExplicitVRBigEndian:
        dataset.PixelData = SIGNED.astype(">i2").tobytes()
    dataset.file_meta.TransferSyntaxUID = syntax
    assert units_of(dataset, tmp_path).tolist() == SIGNED.tolist()


@pytest.mark.parametrize(("implicit", "little"), [(True, True), (False, True), (False, False)])
def test_a_file_without_preamble_is_read(tmp_path: Path, implicit: bool, little: bool) -> None:
    dataset = dicom(SIGNED)
    dataset.PixelData = SIGNED.astype("<i2" if little else ">i2").tobytes()
    dataset["PixelData"].VR = "OW"
    del dataset.file_meta
    dataset.save_as(tmp_path / "old.dcm", implicit_vr=implicit, little_endian=little)
    assert (tmp_path / "old.dcm").read_bytes()[:2] == (b"\x08\x00" if little else b"\x00\x08")
    assert read_dicom_image(tmp_path / "old.dcm").pixels[0, 0].tolist() == SIGNED.tolist()


@pytest.mark.parametrize("form", ["JPEGLosslessProcess14_1", "JPEGLSLossless", "JPEG2000Lossless"])
def test_what_archives_keep_by_way_of_gdcm(tmp_path: Path, form: str) -> None:
    """Files as hospital archives compress them, written by another library."""
    import gdcm

    stored = np.random.default_rng(0).integers(0, 2000, (24, 32)).astype(np.int16)
    plain = save_dicom(tmp_path / "plain.dcm", dicom(stored, RescaleSlope=1, RescaleIntercept=-1024))
    reader, change, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
    reader.SetFileName(str(plain))
    assert reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(getattr(gdcm.TransferSyntax, form)))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(tmp_path / "compressed.dcm"))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    found = read_dicom_image(tmp_path / "compressed.dcm")
    assert pydicom.dcmread(tmp_path / "compressed.dcm").file_meta.TransferSyntaxUID.is_compressed
    assert np.array_equal(found.pixels[0, 0], stored - 1024)


def test_what_is_not_dicom_is_refused(tmp_path: Path) -> None:
    for content in (
        b"",
        b"dear colleague, \n" * 100,
        b"\x89PNG\r\n\x1a\n" + bytes(300),
        bytes(128) + b"DICT",
    ):
        (tmp_path / "letter.dcm").write_bytes(content)
        assert refusal(tmp_path / "letter.dcm") == "it is not a DICOM file"
    with pytest.raises(FileNotFoundError):
        read_dicom_image(tmp_path / "absent.dcm")


def test_a_file_without_an_image_is_refused(tmp_path: Path) -> None:
    report = dicom(SIGNED, Modality="SR")
    del report.Rows, report.PixelData
    assert (
        refusal(save_dicom(tmp_path / "report.dcm", report)) == "it holds no image, or is cut off before it"
    )


def test_cut_off_pixels_are_refused(tmp_path: Path) -> None:
    dataset = dicom(np.arange(64 * 64, dtype=np.int16).reshape(64, 64))
    whole = save_dicom(tmp_path / "a.dcm", dataset).read_bytes()
    (tmp_path / "b.dcm").write_bytes(whole[:-100])
    assert refusal(tmp_path / "b.dcm") == "its pixel data are cut off after 8092 of 8192 bytes"
    (tmp_path / "b.dcm").write_bytes(whole[: len(whole) - 8192 - 20])
    assert "pixel data are missing or cut off" in refusal(tmp_path / "b.dcm")
    short = dicom(SIGNED)
    short.Rows = 20  # the element is whole, but too short for its picture
    assert "cut off after 12 of 120 bytes" in refusal(save_dicom(tmp_path / "c.dcm", short))
    dataset.compress(RLELossless)
    whole = save_dicom(tmp_path / "d.dcm", dataset).read_bytes()
    (tmp_path / "d.dcm").write_bytes(whole[:-100])
    assert refusal(tmp_path / "d.dcm") == "it is cut off"


@pytest.mark.parametrize("syntax", [None, RLELossless, JPEG2000Lossless])
def test_no_cut_gives_garbage(tmp_path: Path, syntax: str | None) -> None:
    """Wherever a file ends too early, it is refused, or nothing of its picture was lost."""
    pixels = np.add.outer(np.arange(32), 3 * np.arange(32)).astype(np.int16)
    dataset = dicom(pixels)
    if syntax is not None:
        dataset.compress(syntax)
    whole = save_dicom(tmp_path / "whole.dcm", dataset).read_bytes()
    refused = 0
    lengths = {*range(0, len(whole), 11), *range(len(whole) - 30, len(whole))}
    for length in lengths:
        (tmp_path / "cut.dcm").write_bytes(whole[:length])
        try:
            image = read_dicom_image(tmp_path / "cut.dcm")
        except Unreadable:
            refused += 1
        else:
            assert image.pixels[0, 0].tolist() == pixels.tolist()
    assert refused >= len(lengths) - 4  # only the length of the last, empty item may be missing


def test_damaged_pixels_are_refused_with_the_form_and_the_way_out(tmp_path: Path) -> None:
    dataset = dicom(np.random.default_rng(1).integers(0, 900, (32, 32)).astype(np.int16))
    dataset.compress(JPEG2000Lossless)
    whole = save_dicom(tmp_path / "a.dcm", dataset).read_bytes()
    start = whole.index(b"\xff\x4f\xff\x51")  # a JPEG 2000 codestream begins
    (tmp_path / "a.dcm").write_bytes(whole[:start] + bytes(40) + whole[start + 40 :])
    reason = refusal(tmp_path / "a.dcm")
    assert "JPEG 2000" in reason
    assert "cannot be decoded" in reason
    assert "; it is damaged" in reason


@pytest.fixture
def without_jpeg_ls() -> Iterator[None]:
    """As if none of the packages that decode JPEG-LS were installed."""
    decoder = get_decoder(JPEGLSLossless)
    plugins = decoder.available_plugins
    for plugin in plugins:
        decoder.remove_plugin(plugin)
    yield
    for plugin in plugins:
        decoder.add_plugin(plugin, (f"pydicom.pixels.decoders.{plugin}", "_decode_frame"))


@pytest.mark.usefixtures("without_jpeg_ls")
def test_a_missing_decoder_is_named_with_what_to_install(tmp_path: Path) -> None:
    dataset = dicom(SIGNED)
    dataset.compress(RLELossless)
    dataset.file_meta.TransferSyntaxUID = JPEGLSLossless
    reason = refusal(save_dicom(tmp_path / "a.dcm", dataset))
    assert reason.startswith(
        "its pixels are compressed as JPEG-LS Lossless Image Compression (1.2.840.10008.1.2.4.80); "
        "to decode them, install "
    )
    for missing in get_decoder(JPEGLSLossless).missing_dependencies:
        assert missing.split(" requires ")[1].removeprefix("gdcm") in reason


@pytest.mark.skipif(
    "pylibjpeg" in get_decoder(JPEGExtended12Bit).available_plugins, reason="a decoder for it is installed"
)
def test_where_the_decoders_at_hand_fail_another_is_named() -> None:
    reason = refusal(Path(str(get_testdata_file("JPGExtended.dcm", download=False))))
    assert "JPEG Extended (Process 2 and 4) (1.2.840.10008.1.2.4.51)) cannot be decoded: " in reason
    assert "exceptions were raised" not in reason
    assert "pylibjpeg>=2.0 and pylibjpeg-libjpeg>=2.1" in reason


def test_a_video_is_refused(tmp_path: Path) -> None:
    dataset = dicom(SIGNED)
    dataset.compress(RLELossless)
    dataset.file_meta.TransferSyntaxUID = MPEG4HP41
    reason = refusal(save_dicom(tmp_path / "a.dcm", dataset))
    assert "MPEG-4" in reason
    assert "export it again, uncompressed" in reason


def test_damaged_tags_are_refused(tmp_path: Path) -> None:
    whole = save_dicom(tmp_path / "a.dcm", dicom(SIGNED, RescaleSlope="1234")).read_bytes()
    (tmp_path / "a.dcm").write_bytes(whole.replace(b"1234", b"12x4"))
    assert refusal(tmp_path / "a.dcm").startswith("its tags are damaged: ")


def test_who_where_and_by_what(tmp_path: Path) -> None:
    dataset = dicom(
        SIGNED,
        PatientID=" P7 ",
        StudyInstanceUID="1.2.3",
        ImagePositionPatient=[-120, 80.5, 33.25],
        SliceLocation="12.5",
        InstanceNumber="4",
        Manufacturer="Acme",
        ManufacturerModelName="X ray",
        WindowCenter=["40", "600"],
        WindowWidth=["80", "2800"],
    )
    image = image_of(dataset, tmp_path)
    assert (image.modality, image.patient_id, image.study) == ("CT", "P7", "1.2.3")
    assert image.positions == (33.25,)
    assert (image.scanner, image.window) == ("Acme X ray", (40, 80))
    dataset.PatientID = ""
    del dataset.ImagePositionPatient, dataset.Manufacturer, dataset.WindowCenter
    image = image_of(dataset, tmp_path)
    assert (image.patient_id, image.study, image.positions) == (None, "1.2.3", (12.5,))
    assert (image.scanner, image.window) == ("X ray", None)
    del dataset.StudyInstanceUID, dataset.SliceLocation, dataset.ManufacturerModelName, dataset.Modality
    dataset.ImagePositionPatient = []
    image = image_of(dataset, tmp_path)
    assert (image.patient_id, image.study, image.positions, image.scanner) == (None, None, (4,), None)
    assert image.modality is None
    del dataset.InstanceNumber
    assert image_of(dataset, tmp_path).positions == (None,)


def test_a_position_that_is_none_is_passed_over(tmp_path: Path) -> None:
    dataset = dicom(SIGNED, ImagePositionPatient=[1, 2], SliceLocation="1234", InstanceNumber="4")
    whole = save_dicom(tmp_path / "a.dcm", dataset).read_bytes()
    assert read_dicom_image(tmp_path / "a.dcm").positions == (1234,)
    (tmp_path / "a.dcm").write_bytes(whole.replace(b"1234", b"nan "))
    assert read_dicom_image(tmp_path / "a.dcm").positions == (4,)


def test_colours_are_three_channels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    dataset = dicom(pixels, 8, Modality="US")
    image = image_of(dataset, tmp_path)
    assert image.pixels.shape == (1, 3, 5, 4)
    assert image.pixels[0] == pytest.approx(pixels.transpose(2, 0, 1) / 255)
    pictures = read_dicom(Scan("a.dcm", (tmp_path / "a.dcm",), label=1), 1)
    assert np.array_equal(pictures.images, image.pixels)  # one channel is the store's business


def test_ybr_becomes_rgb(tmp_path: Path) -> None:
    # Full range, ITU-R BT.601: grey stays grey, and Y 76, Cb 85, Cr 255 is red.
    pixels = np.array([[[128, 128, 128], [76, 85, 255]]], dtype=np.uint8)
    dataset = dicom(pixels, 8, Modality="US", PhotometricInterpretation="YBR_FULL")
    image = image_of(dataset, tmp_path).pixels[0]
    assert image[:, 0, 0] == pytest.approx([128 / 255] * 3)
    assert image[:, 0, 1] == pytest.approx([1, 0, 0], abs=0.01)


@pytest.mark.parametrize("transparent", [False, True])
def test_a_palette_becomes_colours(tmp_path: Path, transparent: bool) -> None:
    dataset = dicom(np.array([[0, 1]], np.uint8), 8, Modality="US", PhotometricInterpretation="PALETTE COLOR")
    for name, low, high in (("Red", 0, 65535), ("Green", 0, 0), ("Blue", 65535, 0)):
        setattr(dataset, f"{name}PaletteColorLookupTableDescriptor", [2, 0, 16])
        dataset[f"{name}PaletteColorLookupTableDescriptor"].VR = "US"
        setattr(dataset, f"{name}PaletteColorLookupTableData", np.array([low, high], np.uint16).tobytes())
    if transparent:  # it goes by the red one's description
        dataset.AlphaPaletteColorLookupTableData = np.array([0, 65535], np.uint16).tobytes()
    assert image_of(dataset, tmp_path).pixels[0, :, 0].tolist() == [[0, 1], [0, 0], [1, 0]]
    assert measure_dicom(tmp_path / "a.dcm").channels == 3


def test_four_channels_are_refused(tmp_path: Path) -> None:
    dataset = dicom(np.zeros((4, 5, 3), np.uint8), 8, PhotometricInterpretation="CMYK", SamplesPerPixel=4)
    dataset.PixelData = bytes(4 * 5 * 4)
    assert "'4' is invalid, it must be 1 or 3" in refusal(save_dicom(tmp_path / "a.dcm", dataset))


def test_every_frame_is_an_image(tmp_path: Path) -> None:
    frames = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5)
    dataset = dicom(frames, PatientID="P", InstanceNumber="9", ImagePositionPatient=[0, 0, 7])
    path = save_dicom(tmp_path / "a.dcm", dataset)
    image = read_dicom_image(path)
    assert image.pixels[:, 0].tolist() == frames.tolist()
    assert image.positions == (1, 2, 3)  # the file's own position is that of one frame
    pictures = read_dicom(Scan("s/a.dcm", (path,), label=1, hospital="H", part="test"), 3)
    assert pictures.images.shape == (3, 3, 4, 5)
    assert pictures.targets.tolist() == [1, 1, 1]
    assert [row.name for row in pictures.rows] == ["s/a.dcm#1", "s/a.dcm#2", "s/a.dcm#3"]
    assert {(row.hospital, row.patient, row.part, row.size) for row in pictures.rows} == {
        ("H", "P", "test", (4, 5))
    }


def test_an_enhanced_file_has_tags_for_each_frame(tmp_path: Path) -> None:
    frames = np.full((2, 2, 2), 1000, dtype=np.uint16)
    frames[:, 0, 0] = 1100
    dataset = dicom(frames)
    groups = []
    for intercept, height in ((-1000, 5.0), (-1100, 7.5)):
        scale, place, group = Dataset(), Dataset(), Dataset()
        scale.RescaleSlope, scale.RescaleIntercept = 1, intercept
        place.ImagePositionPatient = [1, 2, height]
        group.PixelValueTransformationSequence, group.PlanePositionSequence = [scale], [place]
        groups.append(group)
    look, shared = Dataset(), Dataset()
    look.WindowCenter, look.WindowWidth = 50, 200
    shared.FrameVOILUTSequence = [look]
    dataset.PerFrameFunctionalGroupsSequence, dataset.SharedFunctionalGroupsSequence = groups, [shared]
    image = image_of(dataset, tmp_path)
    assert image.pixels[:, 0].tolist() == [[[100, 0], [0, 0]], [[0, -100], [-100, -100]]]
    assert image.positions == (5, 7.5)
    assert image.window == (50, 200)


def grey(dataset: Dataset, folder: Path, channels: int, **options: Any) -> NDArray[Any]:
    path = save_dicom(folder / "grey.dcm", dataset)
    return read_dicom(Scan("grey.dcm", (path,)), channels, **options).images[0]


def test_ct_is_seen_through_windows(tmp_path: Path) -> None:
    dataset = dicom(np.array([[40, 80, 600]], dtype=np.int16))
    three = grey(dataset, tmp_path, 3)
    assert three[:, 0] == pytest.approx(
        np.array([[0.5, 1, 1], [0.3, 0.5, 1], [840 / 2800, 880 / 2800, 0.5]], dtype=np.float32)
    )
    assert three.dtype == np.float32
    assert grey(dataset, tmp_path, 1)[:, 0] == pytest.approx(np.array([[0.5, 1, 1]]))
    dataset.WindowCenter, dataset.WindowWidth = 60, 400  # an abdomen
    assert grey(dataset, tmp_path, 1)[:, 0] == pytest.approx(np.array([[0.45, 0.55, 1]]))
    assert grey(dataset, tmp_path, 1, head=True)[:, 0] == pytest.approx(np.array([[0.5, 1, 1]]))
    assert np.array_equal(grey(dataset, tmp_path, 3), three)
    dataset.WindowWidth = 0  # no window at all
    assert grey(dataset, tmp_path, 1)[:, 0] == pytest.approx(np.array([[0.5, 1, 1]]))


def test_others_are_spread_between_percentiles(tmp_path: Path) -> None:
    numbers = np.arange(101, dtype=np.uint16)[None] * 7
    dataset = dicom(numbers, Modality="MR", WindowCenter="9", WindowWidth="2")
    for channels in (1, 3):
        image = grey(dataset, tmp_path, channels)
        assert image.shape == (1, 1, 101)
        # The 1st and 99th percentile of 0, 7, …, 700 are 7 and 693.
        assert image[0, 0, [0, 1, 50, 99, 100]] == pytest.approx([0, 0, 0.5, 1, 1])
    flat = dicom(np.full((4, 4), 9, dtype=np.uint16), Modality="MR")
    with pytest.raises(Unreadable, match="constant"):
        grey(flat, tmp_path, 1)


def test_rows_and_targets(tmp_path: Path) -> None:
    dataset = dicom(SIGNED, PatientID="P1", SliceLocation="3.5", Manufacturer="Acme")
    path = save_dicom(tmp_path / "a.dcm", dataset)
    (row,) = read_dicom(Scan("d/a.dcm", (path,), label=0), 1).rows
    assert (row.name, row.patient, row.size) == ("d/a.dcm", "P1", (2, 3))
    assert row.features == {"slice": 3.5, "scanner": "Acme"}
    assert type(row.features["slice"]) is float  # not a number of pydicom's, which JSON does not know
    named = read_dicom(Scan("a", (path,), label=0, patient="from the name"), 1)
    assert named.rows[0].patient == "from the name"
    assert named.targets.tolist() == [0]
    assert read_dicom(Scan("a", (path,)), 1).targets.tolist() == [-1]
    bare = save_dicom(tmp_path / "b.dcm", dicom(SIGNED))
    assert read_dicom(Scan("b", (bare,)), 1).rows[0].features == {}


def test_a_study_ties_its_files_together(tmp_path: Path) -> None:
    """Where some files of a study leave the patient blank, their patients differ but the link does not."""
    rows = []
    for number, tags in enumerate(
        (
            {"PatientID": "P1", "StudyInstanceUID": "1.2.3"},
            {"PatientID": "", "StudyInstanceUID": "1.2.3"},
            {"PatientID": "P1"},
            {},
        )
    ):
        path = save_dicom(tmp_path / f"{number}.dcm", dicom(SIGNED, **tags))
        rows += read_dicom(Scan(path.name, (path,)), 1).rows
    assert [(row.patient, row.links) for row in rows] == [
        ("P1", ("study 1.2.3",)),
        ("1.2.3", ("study 1.2.3",)),
        ("P1", ()),
        (None, ()),
    ]


def test_the_files_own_patient_is_a_link_where_another_is_named(tmp_path: Path) -> None:
    both = dicom(np.arange(40, dtype=np.int16).reshape(2, 4, 5), PatientID="P1", StudyInstanceUID="1.2.3")
    rows = read_dicom(Scan("a", (save_dicom(tmp_path / "a.dcm", both),), patient="7"), 1).rows
    assert [(row.patient, set(row.links)) for row in rows] == [("7", {"study 1.2.3", "id P1"})] * 2
    blank = save_dicom(tmp_path / "b.dcm", dicom(SIGNED, PatientID=" "))
    assert read_dicom(Scan("b", (blank,), patient="7"), 1).rows[0].links == ()


def test_a_real_scan() -> None:
    """The CT that pydicom brings along: 128 × 128, and its first stored number is 175."""
    image = read_dicom_image(Path(str(get_testdata_file("CT_small.dcm", download=False))))
    assert image.pixels.shape == (1, 1, 128, 128)
    assert image.pixels[0, 0, 0, 0] == 175 - 1024
    assert (image.modality, image.patient_id, image.scanner) == ("CT", "1CT1", "GE MEDICAL SYSTEMS RHAPSODE")
    assert image.positions[0] == pytest.approx(-75.7, abs=1e-3)
    cut = Path(str(get_testdata_file("MR_truncated.dcm", download=False)))
    assert refusal(cut) == "its pixel data are cut off after 8130 of 8192 bytes"


@pytest.mark.parametrize("form", ["RLE", "implicit", "bigendian", "jp2klossless", "jpeg_ls_lossless"])
def test_one_real_scan_in_many_forms(form: str) -> None:
    plain, other = (
        read_dicom_image(Path(str(get_testdata_file(name, download=False))))
        for name in ("MR_small.dcm", f"MR_small_{form}.dcm")
    )
    assert np.array_equal(plain.pixels, other.pixels)
    assert plain.pixels.std() > 100


def test_oddities_do_not_flood_the_terminal(tmp_path: Path) -> None:
    odd = dicom(SIGNED)
    odd.PixelData += bytes(128)  # more than the picture needs
    path = save_dicom(tmp_path / "a.dcm", odd)
    with pytest.warns(UserWarning, match="11 frames"):
        _ = pydicom.dcmread(path).pixel_array
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _silence.cache_clear()
        assert read_dicom_image(path).pixels.tolist() == [[SIGNED.tolist()]]
