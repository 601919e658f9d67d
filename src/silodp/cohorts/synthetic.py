"""What the two synthetic cohorts share: random streams, the division by patient, and a few drawing tools.

Lengths are in half image widths (the image spans -1…1), so the anatomy is the same at every image size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS
from silodp.errors import InputError

if TYPE_CHECKING:
    from silodp.cohorts.cohort import Cohort, HospitalData
    from silodp.cohorts.kinds import SyntheticCohort

Array = NDArray[np.floating[Any]]  # float32 throughout
Drawing = tuple[NDArray[np.uint8], NDArray[Any]]  # one patient's images and targets

SMALLEST_IMAGE = 32
LARGEST_IMAGE = 256
NEGLIGIBLE = 1e-6  # smaller weights are cut off: numbers near the smallest float make products very slow


@dataclass(frozen=True)
class Patient:
    """One made-up patient: whose, in which part, with how many slices. The number is unique in a hospital."""

    hospital: int
    number: int
    slices: int
    bleeding: bool = False

    @property
    def part(self) -> str:
        return PARTS[self.number % len(PARTS)]


def random_stream(seed: int, *key: int) -> np.random.Generator:
    """A random generator of its own for every key, whatever else is drawn elsewhere."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def part_sizes(train: int, smallest: int) -> tuple[int, int, int]:
    """Slices of each part, 60/20/20, but never fewer than `smallest`."""
    other = max(smallest, round(train / 3))
    return train, other, other


def draw_cohort(settings: SyntheticCohort) -> Cohort:
    """Draws the patients of every hospital; the hospitals do not depend on each other."""
    from silodp.cohorts.cohort import Cohort

    if not SMALLEST_IMAGE <= settings.image_size <= LARGEST_IMAGE:
        raise InputError(
            f"cohort.image_size = {settings.image_size} with cohort.kind = {settings.kind}: "
            f"give {SMALLEST_IMAGE} to {LARGEST_IMAGE} pixels"
        )
    members = [
        _draw_hospital(f"hospital-{number + 1:02d}", settings.patients(number, train), settings.draw_patient)
        for number, train in enumerate(settings.train_sizes())
    ]
    return Cohort(settings.kind, tuple(members))


def _draw_hospital(
    name: str, patients: Sequence[Patient], draw: Callable[[Patient], Drawing]
) -> HospitalData:
    """Draws every patient, on all cores, and puts their slices together part by part."""
    import torch

    from silodp.cohorts.cohort import Examples, HospitalData

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        drawings = list(pool.map(draw, patients))
    parts = {}
    for part in PARTS:
        mine = [drawing for patient, drawing in zip(patients, drawings, strict=True) if patient.part == part]
        images, targets = (torch.from_numpy(np.concatenate(stack)) for stack in zip(*mine, strict=True))
        numbers = [torch.full((len(drawn),), number) for number, (drawn, _) in enumerate(mine)]
        parts[part] = Examples(images, targets, torch.cat(numbers))
    return HospitalData(name, *(parts[part] for part in PARTS))


def column(values: Sequence[float] | NDArray[Any]) -> Array:
    """One number a slice, shaped to go with a stack of slices."""
    return np.asarray(values, dtype=np.float32)[:, None, None]


@lru_cache(maxsize=8)
def grid(size: int) -> tuple[Array, Array]:
    """The x (to the right) and y (downwards) of every pixel's centre."""
    line = ((np.arange(size, dtype=np.float32) + 0.5) * 2 / size - 1).astype(np.float32)
    return np.broadcast_to(line, (size, size)), np.broadcast_to(line[:, None], (size, size))


def turned(x: Array, y: Array, angle: Array | float) -> tuple[Array, Array]:
    """Coordinates in a frame turned by `angle` (radians)."""
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return cos * x + sin * y, cos * y - sin * x


def ellipse(
    x: Array,
    y: Array,
    cx: Array | float,
    cy: Array | float,
    a: Array | float,
    b: Array | float,
    angle: float = 0.0,
) -> Array:
    """Rough signed distance to an ellipse's edge: negative inside."""
    u, v = x - np.float32(cx), y - np.float32(cy)
    if angle:
        u, v = turned(u, v, angle)
    wide, high = np.asarray(a, dtype=np.float32), np.asarray(b, dtype=np.float32)
    u, v = u / wide, v / high
    distance: Array = (np.sqrt(u * u + v * v) - 1) * np.sqrt(wide * high)
    return distance


def wobble(rng: np.random.Generator, theta: Array, orders: Sequence[int], strength: float) -> Array:
    """A smooth random function of the angle, for outlines that are not perfect ellipses."""
    total = np.zeros_like(theta)
    for order in orders:
        height, phase = rng.normal(0, strength / order), rng.uniform(0, 2 * np.pi)
        total += np.float32(height) * np.cos(order * theta + np.float32(phase))
    return total


def inside(distance: Array, size: int, softness: float = 0.0) -> Array:
    """How much of each pixel lies inside (0…1): an edge is at least one pixel soft (partial volume)."""
    cover: Array = np.clip(0.5 - distance / np.float32(2 / size + softness), 0, 1)
    return cover


def paint(canvas: Array, cover: Array, value: Array | float) -> None:
    """Lays `value` over the canvas, in place, where `cover` is 1."""
    canvas += cover * (np.asarray(value, dtype=np.float32) - canvas)


class _Resampler:
    """Computes matrix @ image @ matrix.T for smooth, mostly empty matrices, strip by strip.

    The strips leave out the zeros and are too small for the BLAS library to wake its threads, which on a
    busy machine costs far more than it gains.
    """

    def __init__(self, matrix: Array) -> None:
        self.matrix = matrix
        self.strips = []
        size = len(matrix)
        step = max(8, 4096 // size)
        for first in range(0, size, step):
            block = matrix[first : first + step]
            used = np.flatnonzero(block.any(0))
            columns = slice(int(used[0]), int(used[-1]) + 1)
            self.strips.append((slice(first, first + step), columns, np.ascontiguousarray(block[:, columns])))

    def __call__(self, images: Array) -> Array:
        count, height, _ = images.shape
        size = len(self.matrix)
        wide = np.empty((count, height, size), dtype=np.float32)
        for rows, columns, block in self.strips:
            wide[:, :, rows] = images[:, :, columns] @ block.T
        full = np.empty((count, size, size), dtype=np.float32)
        for rows, columns, block in self.strips:
            full[:, rows] = block @ wide[:, columns]
        return full


@lru_cache(maxsize=64)
def _bumps(size: int, cells: int) -> _Resampler:
    centres = (np.arange(-2, cells + 2) + 0.5) * 2 / cells - 1
    weights = np.exp(-0.5 * ((grid(size)[0][0][:, None] - centres) * cells / 2 / 0.6) ** 2)
    weights[weights < NEGLIGIBLE] = 0
    return _Resampler((weights / np.sqrt((weights**2).sum(1, keepdims=True))).astype(np.float32))


def smooth_noise(rng: np.random.Generator, count: int, size: int, cells: int, shared: float = 0.8) -> Array:
    """Smooth random fields of mean 0 and variance 1, about `cells` bumps across.

    Neighbouring slices of a patient look alike: `shared` of the variance is common to all of them.
    """
    side = cells + 4
    common = rng.standard_normal((1, side, side), dtype=np.float32)
    own = rng.standard_normal((count, side, side), dtype=np.float32)
    return _bumps(size, cells)(np.float32(shared**0.5) * common + np.float32((1 - shared) ** 0.5) * own)


@lru_cache(maxsize=64)
def _blurring(size: int, sigma: float) -> _Resampler:
    line = np.arange(size)
    weights = np.exp(-0.5 * ((line[:, None] - line) * 2 / size / sigma) ** 2)
    weights[weights < NEGLIGIBLE] = 0
    return _Resampler((weights / weights.sum(1, keepdims=True)).astype(np.float32))


def blur(images: Array, sigma: float) -> Array:
    """Gaussian blur; `sigma` in half image widths."""
    return _blurring(images.shape[-1], sigma)(images)


def grain(rng: np.random.Generator, count: int, size: int, sigma: float) -> Array:
    """Scanner noise of variance 1, as coarse as the scanner's own blur."""
    blurring = _blurring(size, sigma)
    variance = np.float32((blurring.matrix[size // 2] ** 2).sum())
    return blurring(rng.standard_normal((count, size, size), dtype=np.float32)) / variance


def to_bytes(images: Array) -> NDArray[np.uint8]:
    """From 0…1 to 0…255; AssertionError for NaN or infinity, which only a defect of the drawing gives."""
    assert np.isfinite(images).all(), "a drawing has NaN or infinite pixels"
    return np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8)
