"""One image, small, with the outlines of its masks drawn over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS

if TYPE_CHECKING:
    from PIL import Image

    from silodp.cohorts.store import Store

SMALLEST = 96  # pixels of the longer side
THICK = 2  # pixels of an outline
DASH = 6  # pixels of a dash where the outlines of several masks coincide

# Okabe and Ito's colours, which colour-blind people tell apart; without black, which is lost on dark images.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
STRIPES = (None, "#FFFFFF", "#000000")  # tell the second and the third seven from the first


class Ink(NamedTuple):
    colour: str
    stripe: str


@dataclass(frozen=True)
class Thumbnail:
    pixels: NDArray[np.uint8]
    caption: str
    part: str
    ink: Ink | None


def thumbnail_of(store: Store, index: int, names: Sequence[str], part: int, largest: int) -> Thumbnail:
    masks = None if store.labels is not None else np.asarray(store.targets[index]) > 0
    pixels = draw(np.asarray(store.images[index]), masks, largest)
    where = PARTS[part] if part >= 0 else ""
    if masks is not None:
        return Thumbnail(pixels, "" if masks.any() else "nothing marked", where, None)
    label = int(store.targets[index])
    caption = "no class" if label < 0 else names[label] if label < len(names) else f"class {label}"
    return Thumbnail(pixels, caption, where, ink_of(label) if label >= 0 else Ink("#999999", "#999999"))


def ink_of(number: int) -> Ink:
    colour = COLOURS[number % len(COLOURS)]
    return Ink(colour, STRIPES[number // len(COLOURS) % len(STRIPES)] or colour)


def draw(image: NDArray[Any], masks: NDArray[np.bool_] | None, largest: int) -> NDArray[np.uint8]:
    """(height, width, 3) of a visible size, with the masks' outlines."""
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
        factor = -(-SMALLEST // longer)
        pixels = pixels.repeat(factor, 0).repeat(factor, 1)
        masks = None if masks is None else masks.repeat(factor, 1).repeat(factor, 2)
    if masks is not None:
        _outline(pixels, masks)
    return pixels


def _outline(pixels: NDArray[np.uint8], masks: NDArray[np.bool_]) -> None:
    """Draws the edge of each mask, from inside; where several coincide, dashes of each in turn."""
    from PIL import ImageColor
    from scipy.ndimage import binary_erosion

    edges = masks & ~binary_erosion(masks, np.ones((1, 3, 3)), iterations=THICK)
    along = np.indices(edges.shape[1:]).sum(0)
    turn = along // DASH % np.maximum(edges.sum(0), 1)
    for number, (edge, place) in enumerate(zip(edges, edges.cumsum(0) - 1, strict=True)):
        here = edge & (place == turn)
        colours = np.array([ImageColor.getrgb(colour) for colour in ink_of(number)], dtype=np.uint8)
        pixels[here] = colours[along[here] // (DASH // 2) % 2]


def png_bytes(pixels: NDArray[np.uint8] | Image.Image) -> bytes:
    from PIL import Image

    file = BytesIO()
    (Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels).save(file, "PNG")
    return file.getvalue()
