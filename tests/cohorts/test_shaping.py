"""Size, channels and numbers of decoded images."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from silodp.cohorts import shaping
from silodp.cohorts.catalogue import Pictures, Problem, Row, Unreadable
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.shaping import Shaped, digest, shape
from silodp.local.trainer import network_input


def shaped(images: NDArray[Any], targets: NDArray[Any] | None = None, **settings: Any) -> Shaped:
    targets = np.zeros(len(images)) if targets is None else targets
    rows = tuple(Row(f"image-{number}") for number in range(len(images)))
    return shape(Pictures(images, targets, rows), CohortSettings.of(kind="npz", **settings))


def noise(*size: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def test_images_stay_as_they_are_where_nothing_is_asked() -> None:
    images = noise(3, 1, 20, 30)
    found = shaped(images)
    assert np.array_equal(found.images, images)
    assert found.images.dtype == np.uint8
    assert [row.name for row in found.rows] == ["image-0", "image-1", "image-2"]


def test_shrinking_averages_areas() -> None:
    images = noise(2, 3, 64, 64)
    found = shaped(images, image_size=16)
    means = images.reshape(2, 3, 16, 4, 16, 4).astype(np.float64).mean((3, 5))
    assert found.images.shape == (2, 3, 16, 16)
    assert np.abs(found.images - means).max() <= 0.5001  # rounded to a byte


@pytest.mark.parametrize(
    ("before", "after", "mode"),
    [((31, 40), (16, 16), "area"), ((9, 12), (30, 40), "bilinear"), ((31, 40), (16, 50), "nearest-exact")],
)
def test_interpolation_is_monais_to_the_bit(
    before: tuple[int, int], after: tuple[int, int], mode: str
) -> None:
    from monai.transforms import Resize

    stack = np.random.default_rng(1).normal(size=(3, *before)).astype(np.float32)
    np.testing.assert_array_equal(
        shaping._interpolated(stack, after, mode), np.asarray(Resize(after, mode=mode)(stack))
    )


def test_an_image_that_shrinks_one_way_only_is_averaged_that_way() -> None:
    image = np.zeros((1, 1, 96, 8), np.uint8)
    image[:, :, ::4] = 200  # one row in four, all lost or all kept without averaging
    found = shaped(image, image_size=24)
    assert (found.images == 50).all()


def test_many_images_are_shaped_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    images, targets = noise(7, 1, 32, 32), np.arange(7)
    images[5] = 3
    whole = shaped(images, targets, image_size=16)
    monkeypatch.setattr(shaping, "PIECE", 3)
    pieces = shaped(images, targets, image_size=16)
    assert np.array_equal(whole.images, pieces.images)
    assert whole.targets.tolist() == pieces.targets.tolist() == [0, 1, 2, 3, 4, 6]
    assert (whole.rows, whole.digests, whole.problems) == (pieces.rows, pieces.digests, pieces.problems)
    assert [problem.name for problem in pieces.problems] == ["image-5"]


def test_enlarging_keeps_the_mean_and_the_corners_order() -> None:
    ramp = np.tile(np.linspace(0, 255, 24).astype(np.uint8), (24, 1))[None, None]
    found = shaped(ramp, image_size=48).images[0, 0].astype(int)
    assert (np.diff(found, axis=1) >= 0).all()
    assert abs(found.mean() - ramp.mean()) < 1


def test_masks_stay_nought_and_one_and_go_with_their_image() -> None:
    image = np.full((1, 1, 60, 60), 10, dtype=np.uint8)
    mask = np.zeros((1, 2, 60, 60), dtype=np.uint8)
    mask[0, 0, 15:30, 30:45] = 1
    mask[0, 1, :, :30] = 1
    image[0, 0, 15:30, 30:45] = 250
    found = shaped(image, mask, image_size=20)
    assert set(np.unique(found.targets)) == {0, 1}
    assert found.targets.shape == (1, 2, 20, 20)
    assert np.array_equal(found.targets[0, 0], found.images[0, 0] > 128)
    assert np.array_equal(found.targets[0, 1].nonzero()[1].max(), 9)


def test_a_mask_takes_the_pixel_in_the_middle() -> None:
    mask = noise(2, 1, 40, 40, seed=1) % 2
    found = shaped(noise(2, 1, 40, 40), mask, image_size=16)
    middle = ((np.arange(16) + 0.5) * 2.5).astype(int)
    assert np.array_equal(found.targets, mask[:, :, middle][:, :, :, middle])


def test_grey_to_colour_and_back() -> None:
    grey = noise(2, 1, 16, 16)
    colour = shaped(grey, channels=3).images
    assert (colour == grey).all()
    assert np.array_equal(shaped(colour, channels=1).images, grey)
    red = np.zeros((1, 3, 16, 16), np.uint8)
    red[0, 0, :8] = 255
    assert shaped(red, channels=1).images[0, 0, 0, 0] == 76  # 0.299 · 255, ITU-R BT.601


def test_two_channels_are_refused() -> None:
    with pytest.raises(Unreadable, match="it has 2 channels, not 1 or 3"):
        shaped(noise(1, 2, 16, 16))
    with pytest.raises(Unreadable, match="it has 2 channels, not 1 or 3"):
        shaped(noise(1, 2, 16, 16), channels=3)


@given(st.booleans(), st.sampled_from([None, 24]))
def test_either_storage_gives_a_network_the_same_input(as_bytes: bool, size: int | None) -> None:
    images = noise(2, 1, 32, 32)
    given = images if as_bytes else images / np.float32(255)
    half = shaped(given, storage="float16", image_size=size).images
    byte = shaped(given, storage="uint8", image_size=size).images
    assert (half.dtype, byte.dtype) == (np.float16, np.uint8)
    difference = network_input(torch.from_numpy(half)) - network_input(torch.from_numpy(byte))
    assert difference.abs().max() < 0.006  # half a byte, and half precision


def test_empty_and_broken_images_are_named_and_left_out() -> None:
    images = np.random.default_rng(1).random((4, 1, 16, 16)).astype(np.float32)
    images[1] = 0.5
    images[2, 0, 3, 3] = np.nan
    found = shaped(images, np.arange(4))
    assert found.problems == (
        Problem("image-1", "it is constant"),
        Problem("image-2", "it has NaN or infinite values"),
    )
    assert found.targets.tolist() == [0, 3]
    assert len(found.images) == len(found.rows) == len(found.digests) == 2


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(Unreadable, match="its mask has 16 × 20 pixels, the image 16 × 16"):
        shaped(noise(1, 1, 16, 16), np.zeros((1, 1, 16, 20), np.uint8))


def test_no_image_at_all_keeps_its_shape() -> None:
    found = shaped(noise(0, 1, 30, 40), np.zeros((0, 1, 30, 40), np.uint8), image_size=16)
    assert found.images.shape == found.targets.shape == (0, 1, 16, 16)


def test_a_digest_knows_pixels_only() -> None:
    image = noise(1, 16, 16)
    assert digest(image) == digest(image.copy())
    assert digest(image) == digest(np.asfortranarray(image))
    changed = image.copy()
    changed[0, 0, 0] ^= 1
    assert digest(image) != digest(changed)
