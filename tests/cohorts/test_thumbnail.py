"""One image, small: its pixels are the image's, and every mask can be seen on it."""

from collections import Counter

import numpy as np
import pytest
from PIL import ImageColor

from silodp.cohorts.thumbnail import COLOURS, draw, ink_of, with_bar


def square(size: int = 28, first: int = 7, last: int = 21) -> np.ndarray:
    mask = np.zeros((size, size), bool)
    mask[first:last, first:last] = True
    return mask


def grey_with(*masks: np.ndarray) -> np.ndarray:
    return draw(np.full((1, *masks[0].shape), 100, np.uint8), np.stack(masks), 256)


def is_inked(pixels: np.ndarray, number: int) -> np.ndarray:
    """Where pixels have a colour or the stripe of this mask."""
    colours = [ImageColor.getrgb(colour) for colour in ink_of(number)]
    return np.any([(pixels == colour).all(-1) for colour in colours], axis=0)


@pytest.mark.parametrize("mask", [square(), np.ones((28, 28), bool)])  # the second reaches the image's edge
def test_a_mask_is_outlined_from_inside_and_not_filled(mask: np.ndarray) -> None:
    pixels = grey_with(mask)
    times = len(pixels) // len(mask)
    marked, inside = is_inked(pixels, 0), mask.repeat(times, 0).repeat(times, 1)
    assert not marked[~inside].any()
    assert (pixels[~marked] == 100).all()
    rows, columns = np.nonzero(inside)
    assert marked[rows.min(), columns.min() : columns.max() + 1].all()
    assert marked[rows.min() : rows.max() + 1, columns.max()].all()
    assert 0 < marked[inside].mean() < 0.2


def test_every_mask_has_its_colour_and_those_that_coincide_are_all_seen() -> None:
    pixels = grey_with(square(), square(), square(first=1, last=4))
    seen = [int(is_inked(pixels, number).sum()) for number in range(3)]
    assert min(seen) > 0
    assert min(seen[:2]) >= 0.3 * sum(seen[:2])
    assert len({ink_of(number) for number in range(3 * len(COLOURS))}) == 3 * len(COLOURS)


def test_more_masks_than_colours_are_striped() -> None:
    empty = np.zeros((28, 28), bool)
    for number in (6, 7, 14):
        pixels = grey_with(*[empty] * number, square())
        seen = Counter(map(tuple, pixels.reshape(-1, 3).tolist())).keys() - {(100, 100, 100)}
        assert seen == {ImageColor.getrgb(colour) for colour in ink_of(number)}
        assert (len(seen) == 1) == (number < len(COLOURS)) == ("gradient" not in ink_of(number).css)


@pytest.mark.parametrize(
    "shape", [(28, 28), (95, 95), (256, 256), (20, 40), (512, 512), (300, 600), (1024, 1)]
)
def test_small_images_are_enlarged_and_large_ones_averaged(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (1, *shape), dtype=np.uint8)
    pixels = draw(image, None, 256)
    height, width, _ = pixels.shape
    assert 96 <= max(height, width) <= 256
    assert height / width == pytest.approx(shape[0] / shape[1], rel=0.01) or width == 1
    if height >= shape[0]:  # the very numbers, repeated
        times = height // shape[0]
        np.testing.assert_array_equal(pixels[::times, ::times, 0], image[0])
    else:
        assert pixels.mean() == pytest.approx(image.mean(), abs=2)


def test_the_smallest_lesion_of_a_large_image_stays() -> None:
    mask = np.zeros((2, 1024, 1024), bool)
    mask[1, 401, 803] = True
    pixels = draw(np.full((1, 1024, 1024), 100, np.uint8), mask, 256)
    assert is_inked(pixels, 1).sum() == 1
    assert not is_inked(pixels, 0).any()


def test_channels_and_half_precision_are_shown_as_bytes_would_be() -> None:
    image = np.broadcast_to(np.array([10, 120, 250], np.uint8)[:, None, None], (3, 28, 28))
    assert (draw(image, None, 256) == (10, 120, 250)).all()
    levels = np.arange(256, dtype=np.float32).reshape(1, 16, 16)
    pixels = draw((levels / 127.5 - 1).astype(np.float16), None, 256)
    np.testing.assert_allclose(pixels[::12, ::12, 0], levels[0], atol=0.5)


def test_a_bar_below_tells_the_class() -> None:
    pixels = draw(np.zeros((1, 28, 28), np.uint8), None, 256)
    for number in (0, 14, -1):
        barred = with_bar(pixels, ink_of(number))
        np.testing.assert_array_equal(barred[: len(pixels)], pixels)
        assert is_inked(barred[len(pixels) :], number).all()
