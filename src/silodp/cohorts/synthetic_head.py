"""The head that synthetic CT slices show before any bleed: skull, brain, ventricles, specks, streaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from silodp.cohorts.synthetic import Array, column, ellipse, grid, inside, paint, smooth_noise, turned, wobble

# Hounsfield-like units.
AIR, FAT, SKIN, CSF, WHITE, GREY, FALX, BONE = -1000.0, -25.0, 45.0, 6.0, 26.0, 38.0, 52.0, 1200.0


@dataclass(frozen=True)
class Scanner:
    """How one hospital's pictures differ from another's.

    Attributes:
        noise: standard deviation, Hounsfield units.
        blur: of the reconstruction kernel, half image widths.
        shift: of all windows, Hounsfield units.
        angle: how heads usually lie, radians.
        streaks: strength of the beam hardening.
    """

    noise: float
    blur: float
    shift: float
    angle: float
    streaks: float


@dataclass(frozen=True)
class Head:
    """A stack of slices being drawn, with what the drawing of bleeds must know.

    Attributes:
        level: of each slice, 0 (skull base) to 1 (vertex).
        u, v: coordinates along the head's own axes, the first bent with the midline.
        theta: angle around the head.
        depth: distance from the inner skull inwards.
        brain, ventricles, sulci: how much of each pixel they cover.
        units: the picture, Hounsfield-like.
    """

    size: int
    level: Array
    u: Array
    v: Array
    theta: Array
    depth: Array
    brain: Array
    ventricles: Array
    sulci: Array
    units: Array


def draw_head(rng: np.random.Generator, count: int, size: int, scanner: Scanner) -> Head:
    """Scalp, skull, brain, sulci, ventricles and falx."""
    step, start = rng.uniform(0.06, 0.11), rng.uniform(0.12, 0.62)
    level = column(np.clip(start + step * np.arange(count), 0.1, 0.95))
    x, y = grid(size)
    x, y = x - np.float32(rng.normal(0, 0.04)), y - np.float32(rng.normal(0, 0.04))
    x, y = turned(x, y, scanner.angle + rng.normal(0, 0.09))
    x = x * (1 + np.float32(rng.normal(-0.12, 0.06)) * y)  # a head is narrower in front

    narrowing = np.sqrt(1 - ((level - 0.4) / 0.85) ** 2)
    a = np.float32(rng.uniform(0.62, 0.76)) * narrowing
    b = np.float32(min(rng.uniform(1.12, 1.28) * float(a.max()), 0.9)) * narrowing / narrowing.max()
    theta = np.arctan2(y, x)
    rho = np.hypot(x / a, y / b) / (1 + wobble(rng, theta, (2, 3, 4, 5), 0.03))
    outside = (rho - 1) * np.sqrt(a * b)
    bone = np.float32(rng.uniform(0.035, 0.065)) * (1 + wobble(rng, theta, (1, 2, 3, 7), 0.25))
    scalp = np.float32(rng.uniform(0.05, 0.09)) * (1 + wobble(rng, theta, (1, 2, 3), 0.3))
    depth = -(outside + bone)
    u = x - np.float32(rng.normal(0, 0.012)) * np.clip(1 - rho, 0, 1)
    brain = inside(-depth, size)

    units = np.full_like(rho, AIR)
    paint(units, inside(outside - scalp, size), SKIN)
    fat = FAT + 60 * smooth_noise(rng, count, size, 10)  # with strands of muscle
    paint(units, inside(outside - scalp + 0.035, size), np.clip(fat, None, 45))
    marrow = np.exp(-(((outside + bone / 2) / (0.3 * bone)) ** 2))  # the diploe between the two tables
    paint(units, inside(outside, size), BONE + 100 * smooth_noise(rng, count, size, 12) - 500 * marrow)

    cortex = 0.09 + 0.035 * smooth_noise(rng, count, size, 14)
    white = inside(cortex - depth, size, 0.05)
    tissue = GREY + (WHITE - GREY) * white + 1.5 * smooth_noise(rng, count, size, 12)
    tissue += 1.5 * smooth_noise(rng, count, size, 3)
    deep = _window(level, 0.3, 0.62)  # thalami and basal ganglia
    for side in (-1, 1) if deep.any() else ():
        for cx, cy, long, wide, angle in ((0.1, 0.07, 0.1, 0.06, 0.5), (0.19, -0.06, 0.13, 0.05, 0.25)):
            nucleus = ellipse(u, y, side * cx, cy, wide, long, side * angle)
            paint(tissue, deep * inside(nucleus, size, 0.03), GREY + 1)

    atrophy = rng.uniform(0.2, 1.0)
    folds = smooth_noise(rng, count, size, 16)
    sulci = np.exp(-((folds / np.float32(0.15 + 0.25 * atrophy)) ** 2)) * inside(depth - 0.16, size, 0.1)
    sulci *= np.clip(2.5 * level - 0.2, 0, 1)  # the furrows of the convexity
    cisterns = _cisterns(u, y, level, size)
    sulci = np.maximum(sulci * np.float32(0.5 + 0.5 * atrophy), cisterns)
    ventricles = _ventricles(rng, u, y, level, size)
    paint(tissue, sulci, CSF + 4)
    fissure = inside(np.abs(u) - 0.02, size) * _beside_falx(y, b, level)
    paint(tissue, 0.4 * fissure, CSF + 4)
    paint(tissue, ventricles, CSF)
    paint(tissue, inside(np.abs(u) - 0.006, size) * _beside_falx(y, b, level), FALX + rng.normal(0, 5))
    sinus = ellipse(u, y, 0, b - bone - 0.035, 0.035, 0.03)  # the great vein at the back of the head
    paint(tissue, inside(sinus, size), rng.uniform(42, 62))
    _petrous_bones(rng, tissue, u, y, level, size)
    paint(units, brain, tissue)
    return Head(size, level, u, y, theta, depth, brain, ventricles, sulci, units)


def _window(level: Array, low: float, high: float) -> Array:
    """1 for slices between two levels, falling off softly."""
    shown: Array = np.clip((level - low) / 0.06 + 0.5, 0, 1) * np.clip((high - level) / 0.06 + 0.5, 0, 1)
    return shown


def _beside_falx(y: Array, b: Array, level: Array) -> Array:
    """The falx parts the brain in front and behind, and near the vertex all along."""
    reach = np.clip(1.6 * (level - 0.35), 0.0, 1.0)
    return np.where(np.abs(y) > (0.55 - 0.6 * reach) * b, np.float32(1), np.float32(0)) * _window(
        level, 0.25, 2
    )


def _cisterns(u: Array, y: Array, level: Array, size: int) -> Array:
    """The star of dark fluid at the skull base, and the Sylvian fissures."""
    star = np.minimum(
        ellipse(u, y, 0, -0.02, 0.12, 0.035),
        np.minimum(ellipse(np.abs(u), y, 0.1, 0.06, 0.09, 0.02, 0.9), ellipse(u, y, 0, -0.12, 0.02, 0.1)),
    )
    sylvian = ellipse(np.abs(u), y, 0.4, -0.08, 0.13, 0.018, -0.35)
    return np.maximum(
        0.9 * _window(level, 0, 0.32) * inside(star, size, 0.02),
        0.7 * _window(level, 0.22, 0.55) * inside(sylvian, size, 0.02),
    )


def _ventricles(rng: np.random.Generator, u: Array, y: Array, level: Array, size: int) -> Array:
    """Fourth and third ventricle, then the lateral ones: horns below, bodies above."""
    wide = rng.uniform(0.6, 1.7)
    fourth = ellipse(u, y, 0, 0.25, 0.05 * wide, 0.03 * wide)
    third = ellipse(u, y, 0, 0.05, 0.014 * wide, 0.1)
    cover = np.maximum(
        _window(level, 0, 0.3) * inside(fourth, size, 0.02),
        _window(level, 0.3, 0.5) * inside(third, size, 0.01),
    )
    for side in (-1, 1):
        swell = wide * rng.uniform(0.8, 1.25)
        front = ellipse(u, y, side * (0.05 + 0.03 * swell), -0.2, 0.03 * swell, 0.11, side * 0.35)
        back = ellipse(u, y, side * 0.19, 0.2, 0.032 * swell, 0.12, side * -0.3)
        body = ellipse(u, y, side * (0.045 + 0.03 * swell), 0.0, 0.032 * swell, 0.25, side * -0.12)
        cover = np.maximum(cover, _window(level, 0.36, 0.6) * inside(np.minimum(front, back), size, 0.015))
        cover = np.maximum(cover, _window(level, 0.58, 0.74) * inside(body, size, 0.015))
    return cover


def _petrous_bones(
    rng: np.random.Generator, tissue: Array, u: Array, y: Array, level: Array, size: int
) -> None:
    tilt, long = rng.uniform(0.35, 0.7), rng.uniform(0.13, 0.2)
    shown = _window(level, 0, 0.2)
    for side in (-1, 1) if shown.any() else ():
        ridge = ellipse(u, y, side * 0.38, 0.1, long, 0.045, side * -tilt)
        paint(tissue, shown * inside(ridge, size, 0.02), 0.6 * BONE)


def draw_calcifications(rng: np.random.Generator, head: Head) -> None:
    """Small bright specks that are no bleed: choroid plexus, pineal gland, falx. Half of all patients."""
    places = [
        (0.19, 0.24, 0.38, 0.62),
        (-0.19, 0.24, 0.38, 0.62),
        (0.0, 0.16, 0.34, 0.5),
        (0.0, -0.35, 0.55, 2),
    ]
    places += [(0.17, -0.05, 0.36, 0.56), (-0.17, -0.05, 0.36, 0.56)]
    for cx, cy, low, high in places:
        present, dense, radius = rng.random() < 0.25, rng.uniform(60, 140), rng.uniform(0.012, 0.025)
        cx, cy = cx + rng.normal(0, 0.015), cy + rng.normal(0, 0.03)
        shown = _window(head.level, low, high)
        if present and shown.any():
            speck = np.exp(-((head.u - cx) ** 2 + (head.v - cy) ** 2) / (2 * radius**2), dtype=np.float32)
            paint(head.units, 0.8 * speck * shown * head.brain, dense)


def draw_streaks(rng: np.random.Generator, head: Head, scanner: Scanner) -> None:
    """Beam hardening: a haze along the bone, and bands between the petrous bones."""
    haze = np.exp(-np.clip(head.depth, 0, None) / np.float32(0.03)) * (
        1 + 0.5 * smooth_noise(rng, len(head.units), head.size, 6)
    )
    across = smooth_noise(rng, len(head.units), head.size, 8)[:, :, :1] * np.ones_like(head.u)
    bands = across * (0.6 + 2.5 * _window(head.level, 0, 0.22))
    head.units[...] += head.brain * np.float32(scanner.streaks) * (4 * np.clip(haze, 0, 2) + 1.5 * bands)
