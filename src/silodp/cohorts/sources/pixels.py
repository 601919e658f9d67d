"""Picture files as arrays, and what all readers do with pixel values and masks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Measure, Pictures, Unreadable, at_fault
from silodp.cohorts.sources.limits import refuse_larger

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "PPM")  # Pillow knows others, and starts programs for some
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm")
# And above it 24 bits of red, green and blue: a colour in a mask. No file has such a label.
COLOURED = 1 << 32
WHOLE = 1e-3  # tolerance for labels that were scaled
ORIENTATION = 0x0112  # EXIF's tag: how a camera was held
MOST_VALUES = 300  # distinct values of a mask that are kept


def read_picture(path: Path) -> NDArray[Any]:
    """Reads (channels, height, width): uint8, or 16-bit grey as floating-point 0…1.

    It has three channels if any pixel has a colour, else one, whatever the file's mode is.
    """
    with _opened(path) as file:
        if file.mode.startswith("I;16") or file.mode in ("I", "F"):
            return as_unit(np.asarray(file))[None]
        grey = file.mode in ("1", "L", "LA")
        pixels = np.asarray(file.convert("L" if grey else "RGB"))
    if grey:
        return pixels[None]
    coloured = (pixels != pixels[..., :1]).any()
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[: 3 if coloured else 1])


def measure_picture(path: Path) -> Measure:
    """Reads size and channels from the header, and pixels only to find out whether they have colours."""
    with _opened(path, whole=False) as file:
        size = file.height, file.width
        if file.getexif().get(ORIENTATION, 1) >= 5:  # lying
            size = file.width, file.height
        if file.mode in ("1", "L", "LA", "I", "F") or file.mode.startswith("I;16"):
            return Measure(*size)
    return Measure(*size, channels=len(read_picture(path)))


def read_mask_picture(path: Path) -> NDArray[Any]:
    """Reads the (height, width) values of a mask: of a palette its indices, except for GIF."""
    with _opened(path) as file:
        indexed = file.mode == "P" and file.format != "GIF"  # which has no other way to say grey
        if indexed or file.mode in ("1", "L", "I", "F") or file.mode.startswith("I;16"):
            return mask_numbers(np.asarray(file))
        red, green, blue, opaque = np.moveaxis(np.asarray(file.convert("RGBA")).astype(np.int64), -1, 0)
    grey = (red == green) & (green == blue)
    colour = COLOURED + (red << 16) + (green << 8) + blue
    return np.where(opaque > 0, np.where(grey, red, colour), 0)


def mask_numbers(mask: NDArray[Any]) -> NDArray[Any]:
    """Converts a mask's values to integers, if all are integers up to rounding; refuses NaN and negatives."""
    if mask.dtype.kind == "f" and not np.isfinite(mask).all():
        raise Unreadable("the mask has NaN or infinite values")
    if mask.dtype.kind not in "bu" and mask.size and mask.min() < 0:
        raise Unreadable(f"the mask has negative numbers such as {mask.min():.3g}")
    if mask.dtype.kind == "f":
        whole = np.rint(mask)
        if (np.abs(mask - whole) > WHOLE).any():
            return mask
        mask = whole
    return mask.astype(np.int64)


def values_in(mask: NDArray[Any]) -> frozenset[float]:
    """The distinct values of a mask; of very many the smallest and the largest."""
    if mask.dtype.kind in "bui" and mask.size and mask.max() < 2**16:
        found = np.flatnonzero(np.bincount(mask.reshape(-1)))
    else:
        found = np.unique(mask)
    return frozenset([*found[: MOST_VALUES - 1].tolist(), *found[-1:].tolist()])


def split_masks(
    mask: NDArray[Any], labels: tuple[int, ...] | None = None, threshold: float | None = None
) -> NDArray[np.uint8]:
    """Numbers (…, height, width) as (…, masks, height, width) of 0 and 1.

    Args:
        mask: what `mask_numbers` gives.
        labels: a mask for each of these values.
        threshold: one mask of all that is as bright or brighter. With neither: of all above 0.
    """
    if labels is None:
        marked = mask > 0 if threshold is None else _brightness(mask) >= threshold
        return marked[..., None, :, :].astype(np.uint8)
    unknown = sorted(values_in(mask) - {0, *labels})
    if unknown and unknown[-1] >= COLOURED:
        raise Unreadable("the mask has colours, which are no cohort.mask_labels; save it in grey")
    if unknown:
        raise Unreadable(f"the mask has the values {unknown[:5]}, cohort.mask_labels only {list(labels)}")
    return np.stack([mask == label for label in labels], axis=-3).astype(np.uint8)


def _brightness(mask: NDArray[Any]) -> NDArray[Any]:
    """The largest component of colours; other values as they are."""
    if mask.dtype.kind == "f" or not mask.size or mask.max() < COLOURED:
        return mask
    brightest = np.maximum(np.maximum(mask >> 16 & 255, mask >> 8 & 255), mask & 255)
    return np.where(mask >= COLOURED, brightest, mask)


def with_masks(
    pictures: Pictures,
    files: Sequence[Path],
    read: Callable[[Path], NDArray[Any]],
    labels: tuple[int, ...] | None = None,
    threshold: float | None = None,
) -> Pictures:
    """Puts the masks from other files in place of the targets.

    Args:
        pictures: the images of one scan.
        files: with the masks.
        read: gives the (n, height, width) values of one of them.
        labels: for a single file, the values that become one mask each.
        threshold: see `split_masks`.
    """
    masks, values = [], []
    for path in files:
        with at_fault(path):
            numbers = read(path)
        if numbers.shape[-2:] != pictures.images.shape[-2:]:
            theirs, ours = (f"{array.shape[-2]} × {array.shape[-1]}" for array in (numbers, pictures.images))
            raise Unreadable(f"its mask has {theirs} pixels, the image {ours}")
        if len(numbers) != len(pictures.images):
            raise Unreadable(f"its mask has {len(numbers)} frames, the image {len(pictures.images)}")
        with at_fault(path):
            masks.append(split_masks(numbers, labels if len(files) == 1 else None, threshold))
        values.append(values_in(numbers))
    return replace(pictures, targets=np.concatenate(masks, axis=1), mask_values=tuple(values))


def as_unit(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Scales values to 0…1 between the 1st and the 99th percentile of all of them, as float32."""
    values = numbers.astype(np.float32)
    if not np.isfinite(values).all():
        raise Unreadable("it has NaN or infinite values")
    ends = (1.0, 99.0)
    below, above = np.percentile(values, ends)
    if above <= below:  # nearly all numbers are the same
        ends = (0.0, 100.0)
        if values.max() <= values.min():
            raise Unreadable("it is constant")
    bottom, top = _percentiles(values, *ends)
    if top <= bottom:  # in single precision
        bottom, top = values.min(), values.max()
    unit: NDArray[np.float32] = ((values - bottom) / (top - bottom)).clip(0.0, 1.0)
    return unit


def _percentiles(values: NDArray[np.float32], *wanted: float) -> NDArray[np.float32]:
    """Percentiles, to the bit as in MONAI's ScaleIntensityRangePercentiles: stores depend on them."""
    if values.size > 1_000_000:
        found: NDArray[np.float32] = np.percentile(values, np.array(wanted)).astype(np.float32)
        return found
    import torch

    shares = torch.tensor(np.array(wanted) / 100, dtype=torch.float32)
    return torch.quantile(torch.from_numpy(values).flatten(), shares).numpy()


@contextmanager
def _opened(path: Path, whole: bool = True) -> Iterator[Any]:
    """Opens a picture; with `whole` all pixels are read, which detects truncated files."""
    from PIL import Image, ImageOps, UnidentifiedImageError

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
        if not whole:
            yield file
            return
        file.load()
        yield ImageOps.exif_transpose(file) if file.getexif().get(ORIENTATION, 1) != 1 else file
