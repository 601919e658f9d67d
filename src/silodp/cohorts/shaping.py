"""Brings decoded pictures into a cohort's size, channels and dtype."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Pictures, Problem, Row, Unreadable
from silodp.cohorts.kinds import FileCohort

PIECE = 512  # images
LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # of red, green and blue, ITU-R BT.601


@dataclass(frozen=True)
class Shaped:
    """Pictures in their final form, and problems with others."""

    images: NDArray[Any]
    targets: NDArray[Any]
    rows: tuple[Row, ...]
    digests: tuple[str, ...]
    problems: tuple[Problem, ...]
    mask_values: tuple[frozenset[float], ...]


def shape(pictures: Pictures, settings: FileCohort) -> Shaped:
    """Brings all pictures of a scan into their final form; those without content become problems.

    A file of many images is processed in pieces, so that they are never all in single precision.
    """
    images, targets = pictures.images, pictures.targets
    if targets.ndim == 4 and targets.shape[-2:] != images.shape[-2:]:
        mask, image = (f"{h} × {w}" for h, w in (targets.shape[-2:], images.shape[-2:]))
        raise Unreadable(f"its mask has {mask} pixels, the image {image}")
    faults = [_fault(image) for image in images]
    good = [number for number, fault in enumerate(faults) if not fault]
    pieces = [good[first : first + PIECE] for first in range(0, max(1, len(good)), PIECE)]
    problems = (Problem(row.name, fault) for row, fault in zip(pictures.rows, faults, strict=True) if fault)
    return Shaped(
        np.concatenate([prepare(images[piece], settings) for piece in pieces]),
        np.concatenate([_prepare_targets(targets[piece], settings) for piece in pieces]),
        tuple(pictures.rows[number] for number in good),
        tuple(digest(images[number]) for number in good),
        tuple(problems),
        pictures.mask_values,
    )


def prepare(images: NDArray[Any], settings: FileCohort) -> NDArray[Any]:
    """Converts (n, c, h, w) uint8, or numbers 0…1, to what is stored: uint8, or float16 of −1…1."""
    return _as_stored(_resize(_channels(images, settings.channels), settings), settings.storage)


def digest(image: NDArray[Any]) -> str:
    """A hash of the pixels, the same for two files with the same picture."""
    return hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=8).hexdigest()


def _fault(image: NDArray[Any]) -> str | None:
    low, high = image.min(), image.max()
    if not np.isfinite(low) or not np.isfinite(high):
        return "it has NaN or infinite values"
    return "it is constant" if low == high else None


def _channels(images: NDArray[Any], channels: int | None) -> NDArray[Any]:
    found = images.shape[1]
    if found not in (1, 3):
        raise Unreadable(f"it has {found} channels, not 1 or 3")
    if channels in (None, found):
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=1)
    grey = np.tensordot(images.astype(np.float32), LUMINANCE, axes=(1, 0))[:, None]
    return grey if images.dtype != np.uint8 else grey.round().astype(np.uint8)


def _prepare_targets(targets: NDArray[Any], settings: FileCohort) -> NDArray[Any]:
    if targets.ndim != 4:
        return targets.astype(np.int64)
    return _resize(targets.astype(np.uint8), settings, masks=True)


def _resize(images: NDArray[Any], settings: FileCohort, masks: bool = False) -> NDArray[Any]:
    """(n, c, h, w) in the size of the settings; masks take the nearest pixel, so they stay 0 and 1."""
    size, sides = settings.image_size, images.shape[-2:]
    if size is None or sides == (size, size):
        return images
    if not len(images):
        return images.reshape(0, images.shape[1], size, size)
    wanted = _inner(sides, settings)
    stack = images.reshape(-1, *sides).astype(np.float32)  # as channels of one image
    if masks:
        stack = _interpolated(stack, wanted, "nearest-exact")
    else:  # areas are averaged where it shrinks, so that thin structures are not lost between pixels
        shrunk = min(sides[0], wanted[0]), min(sides[1], wanted[1])
        stack = _interpolated(_interpolated(stack, shrunk, "area"), wanted, "bilinear")
    resized = _padded(stack.reshape(*images.shape[:2], *wanted), size)
    return resized if images.dtype != np.uint8 else resized.round().clip(0, 255).astype(np.uint8)


def _interpolated(stack: NDArray[np.float32], sides: tuple[int, int], mode: str) -> NDArray[np.float32]:
    """(n, height, width) → (n, *sides)."""
    import torch

    if stack.shape[1:] == sides:
        return stack
    resized = torch.nn.functional.interpolate(torch.from_numpy(stack)[None], size=sides, mode=mode)
    return resized[0].numpy()


def _inner(sides: tuple[int, ...], settings: FileCohort) -> tuple[int, int]:
    """(height, width) of the image within the square of image_size."""
    size, (height, width) = settings.image_size or 0, sides
    if settings.fit == "stretch":
        return size, size
    longer = max(height, width)
    return max(1, round(height * size / longer)), max(1, round(width * size / longer))


def seen_part(sides: tuple[int, ...], settings: FileCohort) -> tuple[slice, slice]:
    """Where in the square of image_size an image of (height, width) lies: rows and columns."""
    size, inner = settings.image_size or 0, _inner(sides, settings)
    top, left = ((size - side) // 2 for side in inner)
    return slice(top, top + inner[0]), slice(left, left + inner[1])


def _padded(images: NDArray[Any], size: int) -> NDArray[Any]:
    """Pads images with 0 to a square, in its middle."""
    gaps = [size - side for side in images.shape[-2:]]
    return (
        np.pad(images, [(0, 0), (0, 0), *((gap // 2, gap - gap // 2) for gap in gaps)])
        if any(gaps)
        else images
    )


def _as_stored(images: NDArray[Any], storage: str) -> NDArray[Any]:
    """Bytes 0…255, or half precision −1…1, which is what a network is given of bytes."""
    if storage == "uint8":
        if images.dtype == np.uint8:
            return images
        return (images * 255).round().clip(0, 255).astype(np.uint8)
    scale = 127.5 if images.dtype == np.uint8 else 0.5
    return (images.astype(np.float32) / scale - 1).clip(-1, 1).astype(np.float16)
