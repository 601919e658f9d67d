"""Picture files of every kind that Pillow writes, read back as the numbers that were put in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from silodp.cohorts.catalogue import Measure, Pictures, Row, Scan, Unreadable, one_picture
from silodp.cohorts.sources.pixels import (
    as_unit,
    mask_numbers,
    measure_picture,
    read_mask_picture,
    read_picture,
    split_masks,
    values_in,
    with_masks,
)

GREY = np.arange(6 * 8, dtype=np.uint8).reshape(6, 8) * 5
LABELS = np.array([[0, 1, 2], [2, 0, 1]], dtype=np.uint8)


def save(path: Path, numbers: NDArray[Any], mode: str | None = None, **options: Any) -> Path:
    image = Image.fromarray(numbers)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


@pytest.mark.parametrize("ending", ["png", "tif", "bmp", "pgm", "gif"])
def test_grey_bytes_come_back_as_they_are(tmp_path: Path, ending: str) -> None:
    pixels = read_picture(save(tmp_path / f"x.{ending}", GREY))
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, GREY[None])


@pytest.mark.parametrize(("mode", "expected"), [("LA", GREY), ("1", (GREY > 127) * 255)])
def test_grey_with_transparency_and_one_bit_are_one_channel(
    tmp_path: Path, mode: str, expected: NDArray[Any]
) -> None:
    grey = expected.astype(np.uint8)
    np.testing.assert_array_equal(read_picture(save(tmp_path / "x.png", grey, mode)), grey[None])


@pytest.mark.parametrize(("name", "mode"), [("x.png", None), ("x.png", "RGBA"), ("x.ppm", None)])
def test_colours_are_three_channels_in_the_order_red_green_blue(
    tmp_path: Path, name: str, mode: str | None
) -> None:
    colours = np.stack([GREY, GREY[::-1], 255 - GREY], axis=-1)
    pixels = read_picture(save(tmp_path / name, colours, mode))
    np.testing.assert_array_equal(pixels, colours.transpose(2, 0, 1))
    assert pixels.flags.c_contiguous


def test_a_picture_with_a_palette_has_its_colours(tmp_path: Path) -> None:
    image = Image.fromarray(LABELS).convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.save(tmp_path / "x.png")
    np.testing.assert_array_equal(read_picture(tmp_path / "x.png")[:, 0, 1], [40, 50, 60])


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_a_photograph_stands_as_it_was_seen(tmp_path: Path, orientation: int, turns: int) -> None:
    """EXIF says how the camera was held; 6: the right side was up, so the picture is turned clockwise."""
    held = Image.Exif()
    held[0x0112] = orientation
    Image.fromarray(GREY).save(tmp_path / "x.png", exif=held)
    expected = np.rot90(GREY, turns)
    np.testing.assert_array_equal(read_picture(tmp_path / "x.png"), expected[None])
    assert measure_picture(tmp_path / "x.png") == Measure(*expected.shape)


def test_jpeg_is_read_up_to_its_losses(tmp_path: Path) -> None:
    smooth = np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))
    pixels = read_picture(save(tmp_path / "x.jpg", smooth, quality=95))
    assert pixels.shape == (1, 64, 64)
    assert np.abs(pixels[0].astype(int) - smooth).max() <= 4


@pytest.mark.parametrize(
    ("kind", "ending"), [("<u2", "png"), ("<u2", "tif"), (">u2", "tif"), ("<i4", "tif"), ("<f4", "tif")]
)
def test_more_than_bytes_are_spread_between_percentiles(tmp_path: Path, kind: str, ending: str) -> None:
    ramp = np.arange(101 * 10).reshape(101, 10)  # its percentiles of 1 and 99 are 10.09 and 998.91
    image = Image.frombytes("I;16B", (10, 101), ramp.astype(kind).tobytes()) if kind == ">u2" else None
    path = tmp_path / f"x.{ending}"
    (image or Image.fromarray(ramp.astype(kind))).save(path)
    pixels = read_picture(path)
    assert pixels.dtype == np.float32
    expected = np.clip((ramp - 10.09) / (998.91 - 10.09), 0, 1)
    np.testing.assert_allclose(pixels[0], expected, atol=1e-5)


def test_a_truncated_picture_raises(tmp_path: Path) -> None:
    whole = save(tmp_path / "x.png", np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8))
    whole.write_bytes(whole.read_bytes()[:2000])
    with pytest.raises(OSError, match="truncated"):
        read_picture(whole)
    with pytest.raises(OSError, match="truncated"):
        read_mask_picture(whole)


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_picture_is_refused_without_its_path(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(Unreadable, match=r"^it is not a picture, or its beginning is damaged$"):
        read_picture(tmp_path / "x.png")


def test_frames_are_refused_rather_than_dropped(tmp_path: Path) -> None:
    frames = [Image.fromarray(GREY), Image.fromarray(GREY[::-1])]
    frames[0].save(tmp_path / "x.tif", save_all=True, append_images=frames[1:])
    for read in (read_picture, read_mask_picture):
        with pytest.raises(Unreadable, match="2 frames; save each as a file of its own"):
            read(tmp_path / "x.tif")


@pytest.mark.parametrize("mode", [None, "RGB", "RGBA", "LA", "I", "F"])
def test_a_mask_has_the_numbers_of_its_file(tmp_path: Path, mode: str | None) -> None:
    mask = read_mask_picture(save(tmp_path / "x.tif", LABELS, mode))
    assert mask.dtype == np.int64
    np.testing.assert_array_equal(mask, LABELS)


def test_a_mask_of_16_bits_keeps_large_labels(tmp_path: Path) -> None:
    large = LABELS.astype(np.uint16) * 1000
    np.testing.assert_array_equal(read_mask_picture(save(tmp_path / "x.png", large)), large)
    Image.frombytes("I;16B", (3, 2), large.astype(">u2").tobytes()).save(tmp_path / "x.tif")
    np.testing.assert_array_equal(read_mask_picture(tmp_path / "x.tif"), large)


def test_a_mask_with_a_palette_has_its_indices(tmp_path: Path) -> None:
    image = Image.frombytes("P", (3, 2), LABELS.tobytes())
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    image.save(tmp_path / "x.png")
    np.testing.assert_array_equal(read_mask_picture(tmp_path / "x.png"), LABELS)


def test_a_mask_of_one_bit(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_mask_picture(save(tmp_path / "x.png", LABELS > 0)), LABELS > 0)


def test_a_coloured_mask_marks_all_that_is_not_black(tmp_path: Path) -> None:
    colours = np.zeros((2, 3, 3), dtype=np.uint8)
    colours[0, 0] = 255, 0, 0
    colours[0, 1] = 0, 0, 1  # Pillow's own grey of this blue is 0
    colours[1, 2] = 255, 255, 255
    mask = read_mask_picture(save(tmp_path / "x.png", colours))
    np.testing.assert_array_equal(split_masks(mask, None)[0], colours.any(-1))
    np.testing.assert_array_equal(split_masks(mask, threshold=1)[0], colours.any(-1))
    np.testing.assert_array_equal(split_masks(mask, threshold=2)[0], colours.max(-1) > 1)
    assert len(values_in(mask)) == 4  # black, two colours and white
    with pytest.raises(Unreadable, match=r"has colours, which are no cohort\.mask_labels"):
        split_masks(mask, (1, 255))


def test_what_cannot_be_seen_is_not_marked(tmp_path: Path) -> None:
    picture = np.full((2, 3, 4), 255, dtype=np.uint8)
    picture[..., 3] = LABELS * 100
    mask = read_mask_picture(save(tmp_path / "x.png", picture))
    np.testing.assert_array_equal(mask, (LABELS > 0) * 255)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("form", ["jpg", "png", "gif"])
def test_soft_edges_are_numbers_like_any_other_and_a_threshold_cuts_them(
    tmp_path: Path, form: str, mode: str
) -> None:
    """One rule for all forms: nobody guesses what a grey along an edge means."""
    yy, xx = np.mgrid[:64, :64]
    disc = ((yy - 30) ** 2 + (xx - 34) ** 2 < 15**2).astype(np.uint8) * 255
    blurred = read_picture(save(tmp_path / "first.jpg", disc, quality=75))[0]
    mask = read_mask_picture(save(tmp_path / f"x.{form}", disc if form == "jpg" else blurred, mode))
    assert len(values_in(mask)) > 2
    assert (split_masks(mask)[0] > 0).sum() > disc.astype(bool).sum() + 50
    marked = split_masks(mask, threshold=128)[0] > 0
    assert (marked != disc.astype(bool)).sum() < 10


def test_a_gif_says_grey_by_its_palette(tmp_path: Path) -> None:
    mask = (LABELS == 0).astype(np.uint8)
    image = Image.frombytes("P", (3, 2), mask.tobytes())
    image.putpalette([255, 255, 255, 0, 0, 0])  # white first, as some programs write it
    image.save(tmp_path / "x.gif")
    np.testing.assert_array_equal(read_mask_picture(tmp_path / "x.gif") > 0, LABELS > 0)


def test_a_mask_keeps_fractions_and_refuses_nan(tmp_path: Path) -> None:
    fine = np.array([[0.0, 1.0], [2.0002, 0.9999]], dtype=np.float32)
    np.testing.assert_array_equal(read_mask_picture(save(tmp_path / "x.tif", fine)), [[0, 1], [2, 1]])
    soft = mask_numbers(np.array([[0.0, 0.25, 0.5]]))
    assert values_in(soft) == {0, 0.25, 0.5}
    assert split_masks(soft, threshold=0.5).tolist() == [[[0, 0, 1]]]
    assert len(values_in(np.arange(100_000))) == 300
    for bad in (np.nan, np.inf):
        with pytest.raises(Unreadable, match="NaN or infinite"):
            mask_numbers(np.array([0.0, bad]))


def test_labels_become_masks_in_their_order() -> None:
    masks = split_masks(LABELS[None].astype(np.int64), (2, 1))
    assert masks.shape == (1, 2, 2, 3)
    np.testing.assert_array_equal(masks[0, 0], LABELS == 2)
    np.testing.assert_array_equal(masks[0, 1], LABELS == 1)
    with pytest.raises(Unreadable, match=r"the mask has the values \[2\], cohort.mask_labels only \[1\]"):
        split_masks(LABELS, (1,))


@given(arrays.arrays(np.uint8, (3, 4, 5), elements=st.integers(0, 3)))
def test_masks_of_all_labels_add_up_to_the_mask_of_none(mask: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(split_masks(mask, (1, 2, 3)).sum(1), split_masks(mask, None)[:, 0])


def numbers() -> st.SearchStrategy[NDArray[np.float32]]:
    fewest = arrays.arrays(np.float32, (7, 9), elements=st.floats(-1000, 3000, width=32))
    return fewest.filter(lambda values: bool(np.ptp(values) > 1))


@given(numbers())
def test_unit_keeps_order_and_range(values: NDArray[np.float32]) -> None:
    unit = as_unit(values)
    assert unit.dtype == np.float32
    assert unit.min() >= 0
    assert unit.max() <= 1
    order = np.argsort(values, axis=None)
    assert (np.diff(unit.ravel()[order]) >= 0).all()


@pytest.mark.parametrize("shape", [(7, 9), (3, 40, 50), (1001, 1001)])
def test_unit_is_monais_to_the_bit(shape: tuple[int, ...]) -> None:
    from monai.transforms import ScaleIntensityRangePercentiles

    values = np.random.default_rng(len(shape)).normal(300, 700, shape).astype(np.float32)
    theirs = ScaleIntensityRangePercentiles(1.0, 99.0, 0.0, 1.0, clip=True)(values)
    np.testing.assert_array_equal(as_unit(values), np.asarray(theirs))


@given(numbers(), st.floats(0.1, 50), st.floats(-500, 500))
def test_unit_does_not_depend_on_scale_and_offset(
    values: NDArray[np.float32], scale: float, offset: float
) -> None:
    np.testing.assert_allclose(as_unit(values * scale + offset), as_unit(values), atol=1e-2)


def test_unit_of_nearly_constant_numbers_is_between_their_ends() -> None:
    values = np.zeros(1000)
    values[3], values[5] = 4.0, -4.0
    unit = as_unit(values)
    assert (unit[3], unit[5], unit[0]) == (1.0, 0.0, 0.5)


@pytest.mark.parametrize(
    ("bad", "why"),
    [(7.0, "it is constant"), (np.nan, "NaN or infinite"), (np.inf, "NaN or infinite")],
)
def test_unit_refuses(bad: float, why: str) -> None:
    values = np.full(10, 7.0)
    values[0] = bad
    with pytest.raises(Unreadable, match=why):
        as_unit(values)


def two_frames() -> Pictures:
    rows = (Row("a#1"), Row("a#2"))
    return Pictures(np.stack([GREY[None], GREY[None] + 1]), np.array([-1, -1]), rows)


def masked(pictures: Pictures, *masks: NDArray[Any], labels: tuple[int, ...] | None = None) -> Pictures:
    numbers = {Path(f"{place}"): mask for place, mask in enumerate(masks)}
    return with_masks(pictures, list(numbers), numbers.__getitem__, labels)


def test_several_masks_are_channels_in_their_order() -> None:
    first, second = np.zeros((2, 6, 8), int), np.zeros((2, 6, 8), int)
    first[0, 1, 1] = 2
    second[1, 2, 3] = 1
    pictures = masked(two_frames(), first, second)
    assert pictures.targets.dtype == np.uint8
    assert pictures.targets.shape == (2, 2, 6, 8)
    assert np.argwhere(pictures.targets).tolist() == [[0, 0, 1, 1], [1, 1, 2, 3]]
    assert pictures.rows == two_frames().rows
    labelled = masked(two_frames(), first, labels=(2, 1)).targets
    assert labelled.shape == (2, 2, 6, 8)
    assert labelled[0, :, 1, 1].tolist() == [1, 0]
    both = masked(two_frames(), first, second, labels=(2, 1))  # labels belong to a single mask
    np.testing.assert_array_equal(both.targets, pictures.targets)


@pytest.mark.parametrize("kept", [[False, False], [False, True]])
def test_images_that_are_left_out_take_their_targets_and_rows_along(kept: list[bool]) -> None:
    found = masked(two_frames(), np.ones((2, 6, 8), int)).at(np.array(kept))
    assert found.images.shape == found.targets.shape == (sum(kept), 1, 6, 8)
    assert found.images.dtype == np.uint8
    assert found.rows == (Row("a#2"),) * sum(kept)
    assert all(np.array_equal(image[0], GREY + 1) for image in found.images)


def test_a_mask_of_another_size_or_length_is_refused() -> None:
    picture = one_picture(Scan("x.png", ()), np.zeros((1, 64, 64), np.uint8))
    with pytest.raises(Unreadable, match="its mask has 40 × 64 pixels, the image 64 × 64"):
        masked(picture, np.zeros((1, 40, 64), int))
    with pytest.raises(Unreadable, match="its mask has 1 frames, the image 2"):
        masked(two_frames(), np.zeros((1, 6, 8), int))
