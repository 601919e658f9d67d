"""Random anatomies: bodies with organs of any shape and grey, for organs without a generator of their own.

The target is the organ in the middle; half of the images have a small lesion in it, which is their class.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.synthetic import (
    Array,
    blur,
    ellipse,
    grid,
    inside,
    paint,
    random_stream,
    smooth_noise,
    to_bytes,
    turned,
    wobble,
)

STREAM = 3  # random stream, different from those of the other generators
Picture = NDArray[np.uint8]


def draw_shapes(number: int, *, image_size: int, seed: int) -> tuple[Picture, Picture, Picture]:
    """An image, the mask of its target and that of its lesion (often empty): each (1, size, size) uint8."""
    rng = random_stream(seed, STREAM, number)
    x, y = grid(image_size)
    x, y = turned(x, y, rng.uniform(-np.pi, np.pi))
    canvas = np.full((1, image_size, image_size), rng.uniform(0, 0.1), dtype=np.float32)
    body = _blob(rng, x, y, 0, 0, rng.uniform(0.7, 1.2), 0.05)
    paint(canvas, inside(body, image_size), rng.uniform(0.2, 1))
    paint(canvas, inside(body + rng.uniform(0.05, 0.2), image_size), rng.uniform(0.1, 0.9))
    for _ in range(int(rng.integers(4, 14))):
        angle, far, wide = rng.uniform(-np.pi, np.pi), rng.uniform(0.3, 0.85), rng.uniform(0.05, 0.3)
        organ = _blob(rng, x, y, far * np.cos(angle), far * np.sin(angle), wide, 0.1)
        cover = inside(np.maximum(organ, body + 0.05), image_size, rng.uniform(0, 0.03))
        paint(canvas, cover, _tissue(rng, image_size))
    target = _blob(rng, x, y, rng.normal(0, 0.05), rng.normal(0, 0.05), rng.uniform(0.15, 0.4), 0.12)
    if rng.random() < 0.6:  # a capsule
        paint(canvas, inside(target - rng.uniform(0.01, 0.04), image_size), rng.uniform(0, 1))
    cover = inside(target, image_size)
    paint(canvas, cover, _tissue(rng, image_size))
    if rng.random() < 0.5:  # an inner zone
        paint(canvas, inside(target + rng.uniform(0.05, 0.15), image_size, 0.02), _tissue(rng, image_size))
    lesion = np.zeros_like(cover)
    if rng.random() < 0.5:
        angle, far = rng.uniform(-np.pi, np.pi), rng.uniform(0, 0.12)
        lump = _blob(rng, x, y, far * np.cos(angle), far * np.sin(angle), rng.uniform(0.04, 0.1), 0.15)
        contrast = rng.uniform(0.25, 0.6) * rng.choice((-1, 1))
        lesion = inside(lump, image_size, 0.02)
        canvas += lesion * np.float32(contrast)
    picture = np.clip(blur(canvas, rng.uniform(0.005, 0.02)), 0, 1)
    return to_bytes(picture), (cover > 0.5).astype(np.uint8), (lesion > 0.5).astype(np.uint8)


def _blob(
    rng: np.random.Generator, x: Array, y: Array, cx: float, cy: float, radius: float, rough: float
) -> Array:
    """Approximate signed distance, (1, h, w), to the outline of a round shape."""
    a, b = radius * np.exp(rng.uniform(-0.35, 0.35)), radius * np.exp(rng.uniform(-0.35, 0.35))
    theta = np.arctan2(y - np.float32(cy), x - np.float32(cx))
    outline = wobble(rng, theta, (1, 2, 3, 4, 5), rough)
    shape: Array = ellipse(x, y, cx, cy, a, b, rng.uniform(-np.pi, np.pi)) - outline * np.float32(radius)
    return shape[None]


def _tissue(rng: np.random.Generator, size: int) -> Array:
    """A grey level with smooth variations."""
    cells = int(rng.integers(4, 24))
    field: Array = np.float32(rng.uniform(0, 1)) + np.float32(rng.uniform(0, 0.15)) * smooth_noise(
        rng, 1, size, cells
    )
    return np.clip(field, 0, 1)
