"""Draws one image, small, with the outlines of its masks; all images are shown with it."""

from __future__ import annotations

from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ENLARGED = 192  # pixels of the longer side, at most, of images that are shown larger than they are
THICK = 2  # pixels of an outline
DASH = 6  # pixels of a dash where the outlines of several masks coincide
BAR = 8  # pixels of the bar below an image that has a class

# Okabe and Ito's colours, which colour-blind people tell apart; without black, which is lost on dark images.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
STRIPES = (None, "#FFFFFF", "#000000")  # tell the second and the third seven from the first


class Ink(NamedTuple):
    """The colour of a mask or class; `stripe` is a second one, or the same."""

    colour: str
    stripe: str

    @property
    def css(self) -> str:
        """As a background."""
        if self.colour == self.stripe:
            return self.colour
        return f"repeating-linear-gradient(90deg,{self.colour} 0 {DASH}px,{self.stripe} 0 {2 * DASH}px)"

    def along(self, places: NDArray[np.int64], dash: int) -> NDArray[np.uint8]:
        """(n, 3) of pixels at these places along a line."""
        from PIL import ImageColor

        both = np.array([ImageColor.getrgb(one) for one in self], dtype=np.uint8)
        pixels: NDArray[np.uint8] = both[places // dash % 2]
        return pixels


def ink_of(number: int) -> Ink:
    """The ink of the mask or class with this number; grey for a negative one."""
    if number < 0:
        return Ink("#999999", "#999999")
    colour = COLOURS[number % len(COLOURS)]
    return Ink(colour, STRIPES[number // len(COLOURS) % len(STRIPES)] or colour)


def draw(image: NDArray[Any], masks: NDArray[np.bool_] | None, largest: int) -> NDArray[np.uint8]:
    """Draws an image in a visible size with the masks' outlines, as (height, width, 3) uint8.

    Args:
        image: (1 or 3, height, width), bytes or numbers from -1 to 1.
        masks: (masks, height, width).
        largest: pixels of the longer side.
    """
    from PIL import Image

    if image.dtype != np.uint8:
        image = ((image.astype(np.float32) + 1) * 127.5).round().clip(0, 255).astype(np.uint8)
    pixels = np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0))
    longer = max(pixels.shape[:2])
    if longer > largest:
        height, width = (max(1, round(side * largest / longer)) for side in pixels.shape[:2])
        pixels = np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX))
        if masks is not None:  # whatever is covered in part counts, so that no small lesion is lost
            floats = [Image.fromarray(mask.astype(np.float32)) for mask in masks]
            smaller = [mask.resize((width, height), Image.Resampling.BOX) for mask in floats]
            masks = np.stack([np.asarray(mask) > 0 for mask in smaller])
    else:
        factor = max(1, ENLARGED // longer)
        pixels = pixels.repeat(factor, 0).repeat(factor, 1)
        masks = None if masks is None else masks.repeat(factor, 1).repeat(factor, 2)
    if masks is not None:
        _outline(pixels, masks)
    return pixels


def _outline(pixels: NDArray[np.uint8], masks: NDArray[np.bool_]) -> None:
    """Draws the edge of each mask, from inside; where several coincide, dashes of each in turn."""
    from scipy.ndimage import binary_erosion

    edges = masks & ~binary_erosion(masks, np.ones((1, 3, 3)), iterations=THICK)
    along = np.indices(edges.shape[1:]).sum(0)
    turn = along // DASH % np.maximum(edges.sum(0), 1)
    for number, (edge, place) in enumerate(zip(edges, edges.cumsum(0) - 1, strict=True)):
        here = edge & (place == turn)
        pixels[here] = ink_of(number).along(along[here], DASH // 2)


def with_bar(pixels: NDArray[np.uint8], ink: Ink) -> NDArray[np.uint8]:
    """An image with a bar below it that tells its class."""
    bar = ink.along(np.arange(pixels.shape[1]), DASH)
    return np.concatenate([pixels, np.broadcast_to(bar, (BAR, *bar.shape))])


def png_bytes(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
