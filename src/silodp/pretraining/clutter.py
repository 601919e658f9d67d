"""Distractors in head CT: the arcs of the scanner's table, and slices with bones and air cavities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.synthetic import grid, smooth_noise

DARK = 20  # bytes: air
BONY = 0.3  # share of the slices without a target that get bones and cavities, as below the brain


def clutter(
    rng: np.random.Generator, images: NDArray[np.uint8], masks: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Adds a table to the images of a patient, and bones to slices without a target.

    Images and masks are (n, 1, s, s) uint8; the result is a new array of that shape.
    """
    changed = _bones(rng, images, masks.reshape(len(masks), -1).max(1) > 0)
    return _table(rng, changed) if rng.random() < 0.7 else changed


def _table(rng: np.random.Generator, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Adds one or two bright arcs outside the head, the same in all slices."""
    x, y = grid(images.shape[-1])
    found = images.copy()
    angle, far = rng.uniform(-np.pi, np.pi), rng.uniform(0.75, 1.0)
    for _ in range(int(rng.integers(1, 3))):
        radius = rng.uniform(0.9, 3.0)
        cx, cy = (far - radius) * np.cos(angle), (far - radius) * np.sin(angle)
        arc = np.abs(np.hypot(x - cx, y - cy) - radius) < rng.uniform(0.008, 0.04)
        facing = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle) > 0
        place = (arc & facing)[None, None] & (found < DARK)
        found[place] = int(rng.uniform(120, 255))
        far = min(1.1, far + rng.uniform(0.05, 0.2))
    return found


def _bones(
    rng: np.random.Generator, images: NDArray[np.uint8], has_target: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Adds bright bones and black cavities of random size to some slices."""
    count, _, size, _ = images.shape
    found = images.copy()
    chosen = ~has_target & (rng.random(count) < BONY)
    head = images > DARK
    lumps = [smooth_noise(rng, count, size, int(rng.integers(5, 12)), shared=0.5)[:, None] for _ in range(2)]
    limits = rng.uniform(0.3, 1.5, 2)
    here = chosen[:, None, None, None] & head
    found[here & (lumps[0] > limits[0])] = 255
    found[here & (lumps[1] > limits[1] + 0.3)] = 0
    return found
