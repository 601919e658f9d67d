"""Picture files (PNG, JPEG, TIFF, BMP) as arrays, and what all readers do to numbers and masks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Pictures, Unreadable
from silodp.cohorts.sources.limits import refuse_larger

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")  # Pillow knows others, and starts programs for some
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
COLOURED = 1 << 32  # stands for any colour in a mask; no file has such a label
WHOLE = 1e-3  # by which a label may miss its whole number, after some scaling
FAINT = 16  # what JPEG may make of black


def read_picture(path: Path) -> NDArray[Any]:
    """(channels, height, width): bytes with 1 or 3 channels, or 16-bit grey as floating-point 0…1."""
    with _opened(path) as file:
        if file.mode.startswith("I;16") or file.mode in ("I", "F"):
            return as_unit(np.asarray(file))[None]
        grey = file.mode in ("1", "L", "LA")
        pixels = np.asarray(file.convert("L" if grey else "RGB"))
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_mask_picture(path: Path) -> NDArray[np.int64]:
    """(height, width) of the numbers that stand in a mask's file: a palette's indices, not its colours."""
    with _opened(path) as file:
        if file.format == "JPEG":
            return _without_blur(np.asarray(file.convert("L")))
        if file.mode in ("1", "L", "P", "I", "F") or file.mode.startswith("I;16"):
            return whole_numbers(np.asarray(file))
        red, green, blue, opaque = np.moveaxis(np.asarray(file.convert("RGBA")).astype(np.int64), -1, 0)
    grey = (red == green) & (green == blue)
    return np.where(opaque > 0, np.where(grey, red, COLOURED), 0)


def whole_numbers(mask: NDArray[Any]) -> NDArray[np.int64]:
    """A mask's label numbers, in whatever type its file holds them."""
    if mask.dtype.kind == "f":
        if not np.isfinite(mask).all():
            raise Unreadable("its mask has NaN or infinite values")
        fractions = np.abs(mask - np.rint(mask)) > WHOLE
        if fractions.any():
            raise Unreadable(f"its mask has fractions such as {mask[fractions][0]:.3g}; save whole numbers")
        mask = np.rint(mask)
    if mask.dtype.kind != "u" and mask.size and mask.min() < 0:
        raise Unreadable(f"its mask has negative numbers such as {mask.min():.3g}")
    return mask.astype(np.int64)


def split_masks(mask: NDArray[Any], labels: tuple[int, ...] | None) -> NDArray[np.uint8]:
    """(…, height, width) labels as (…, masks, height, width) of 0 and 1; without `labels`, of all above 0."""
    if labels is None:
        return (mask > 0)[..., None, :, :].astype(np.uint8)
    unknown = sorted(set(np.unique(mask).tolist()) - {0, *labels})
    if COLOURED in unknown:
        raise Unreadable("its mask has colours, which are no cohort.mask_labels; save it in grey")
    if unknown:
        raise Unreadable(f"its mask has the values {unknown[:5]}, cohort.mask_labels only {list(labels)}")
    return np.stack([mask == label for label in labels], axis=-3).astype(np.uint8)


def with_masks(
    pictures: Pictures, masks: Sequence[NDArray[Any]], labels: tuple[int, ...] | None, only: bool
) -> Pictures:
    """Pictures with the masks that other files hold.

    Args:
        pictures: the images of one scan.
        masks: (n, height, width) label numbers from each file.
        labels: of a single file, each value a mask of its own.
        only: leave out images whose masks are empty.
    """
    images = pictures.images
    for mask in masks:
        if mask.shape[-2:] != images.shape[-2:]:
            theirs, ours = (f"{array.shape[-2]} × {array.shape[-1]}" for array in (mask, images))
            raise Unreadable(f"its mask has {theirs} pixels, the image {ours}")
        if len(mask) != len(images):
            raise Unreadable(f"its mask has {len(mask)} frames, the image {len(images)}")
    targets = np.concatenate(
        [split_masks(mask, labels if len(masks) == 1 else None) for mask in masks], axis=1
    )
    kept = np.flatnonzero(targets.any((1, 2, 3)) | (not only)).tolist()
    return replace(
        pictures, images=images[kept], targets=targets[kept], rows=tuple(pictures.rows[row] for row in kept)
    )


def as_unit(numbers: NDArray[Any], low: float = 1.0, high: float = 99.0) -> NDArray[np.float32]:
    """Numbers of any range as 0…1, by two percentiles of all of them (a picture's, a volume's)."""
    from monai.transforms import ScaleIntensityRangePercentiles

    values = numbers.astype(np.float32)
    if not np.isfinite(values).all():
        raise Unreadable("it has NaN or infinite values")
    below, above = np.percentile(values, [low, high])
    if above <= below:  # nearly all numbers are the same
        low, high = 0.0, 100.0
        if values.max() <= values.min():
            raise Unreadable("it is constant")
    scaled = ScaleIntensityRangePercentiles(low, high, 0.0, 1.0, clip=True)(values)
    return np.asarray(scaled, dtype=np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A picture with all of its pixels, so that a truncated file is noticed."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # of half the number it refuses
            opened = Image.open(path, formats=FORMATS)
    except UnidentifiedImageError:  # whose own message has the whole path
        raise Unreadable("it is not a picture, or its beginning is damaged") from None
    except Image.DecompressionBombError:
        raise Unreadable(f"it declares more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels") from None
    with opened as file:
        refuse_larger(path, (file.height, file.width, len(file.getbands())))
        if (frames := getattr(file, "n_frames", 1)) > 1:
            raise Unreadable(f"it has {frames} frames; save each as a file of its own")
        file.load()
        yield file


def _without_blur(grey: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Black and white as they were before JPEG put grey along every edge."""
    if FAINT < grey.max() < 128:
        raise Unreadable("its mask is a JPEG with faint values, which its compression blurs; save it as PNG")
    return np.where(grey >= 128, 255, 0).astype(np.int64)
