"""Made-up pelvic MRI slices (T2-like) with the prostate outlined, for trials without patients' data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.kinds import SyntheticCohort
from silodp.cohorts.synthetic import (
    Array,
    Drawing,
    Patient,
    blur,
    column,
    ellipse,
    grain,
    grid,
    inside,
    paint,
    part_sizes,
    random_stream,
    smooth_noise,
    to_bytes,
    turned,
    wobble,
)
from silodp.errors import InputError

STREAM = 2  # keeps these random streams apart from the CT ones
SLICES_A_PATIENT = (4, 10)

# Brightness on T2, 0…1.
AIR, FAT, MUSCLE, MARROW, CORTEX, URINE, VEIN = 0.02, 0.68, 0.26, 0.52, 0.08, 0.95, 0.72
PERIPHERAL, TRANSITION, CAPSULE, WALL = 0.66, 0.45, 0.3, 0.33


@dataclass(frozen=True)
class Site:
    """One hospital: how much data it has and how its pictures look.

    Attributes:
        weight: training slices in the study that this cohort imitates.
        gamma: contrast; above 1 darkens the middle greys.
        noise: standard deviation of the (Rician) noise, relative to a full-scale signal.
        blur: half image widths.
        bias: strength of the slow brightness drift.
        offset: added to every pixel.
        coil: strength of an endorectal coil's bright near field; 0 where none is used.
        zoom: how large the pelvis appears.
    """

    weight: int
    gamma: float
    noise: float
    blur: float
    bias: float
    offset: float
    coil: float
    zoom: float


SITES = (
    Site(457, gamma=1.0, noise=0.04, blur=0.012, bias=0.15, offset=0.00, coil=0.0, zoom=1.10),
    Site(285, gamma=0.75, noise=0.03, blur=0.020, bias=0.10, offset=0.03, coil=0.0, zoom=0.90),
    Site(333, gamma=1.15, noise=0.04, blur=0.010, bias=0.20, offset=0.00, coil=0.0, zoom=1.00),
    Site(290, gamma=1.0, noise=0.055, blur=0.016, bias=0.30, offset=0.00, coil=1.0, zoom=1.15),
    Site(467, gamma=1.3, noise=0.04, blur=0.022, bias=0.25, offset=0.05, coil=0.5, zoom=0.95),
    Site(976, gamma=0.85, noise=0.035, blur=0.012, bias=0.12, offset=0.02, coil=0.0, zoom=1.05),
)


@dataclass(frozen=True)
class Frame:
    """A stack of slices being drawn: pixel coordinates, and how high each slice lies in the gland (-1…1)."""

    size: int
    x: Array
    y: Array
    height: Array

    def __len__(self) -> int:
        return len(self.height)


class SyntheticMri(SyntheticCohort):
    """Made-up MRI slices of the pelvis with the prostate outlined, of up to six sites."""

    task: ClassVar[str | None] = "segmentation"
    kind: Literal["synthetic-mri"] = "synthetic-mri"

    def train_sizes(self) -> list[int]:
        """In proportion to the weights; fewer hospitals leave each one's share of `slices` as it is."""
        if self.hospitals > len(SITES):
            raise InputError(
                f"cohort.hospitals = {self.hospitals} with cohort.kind = {self.kind}: give 1 to {len(SITES)}"
            )
        weights = [site.weight for site in SITES]
        edges = np.rint(np.cumsum([0, *weights]) * (self.slices / sum(weights))).astype(int)
        sizes: list[int] = np.diff(edges).tolist()
        if min(sizes) < 1:
            raise InputError(
                f"cohort.slices = {self.slices}: it leaves one of the {len(SITES)} sites without any; "
                f"give at least {2 * len(SITES)}"
            )
        return sizes[: self.hospitals]

    def patients(self, hospital: int, train: int) -> list[Patient]:
        """One hospital's patients, part by part; the last one of a part has what slices are left."""
        patients = []
        for part, wanted in enumerate(part_sizes(train, smallest=1)):
            rng = random_stream(self.seed, STREAM, hospital, 0, part)
            turn = 0
            # A twelfth of the training slices at most: a small hospital has patients enough to be split.
            most = max(2, wanted // 12) if PARTS[part] == "train" else wanted
            while wanted > 0:
                count = min(int(rng.integers(SLICES_A_PATIENT[0], SLICES_A_PATIENT[1] + 1)), wanted, most)
                patients.append(Patient(hospital, len(PARTS) * turn + part, count))
                wanted, turn = wanted - count, turn + 1
        return patients

    def draw_patient(self, patient: Patient) -> Drawing:
        return draw_mri_patient(patient, image_size=self.image_size, seed=self.seed)


def draw_mri_patient(
    patient: Patient, *, image_size: int, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """One patient's images and masks, both (slices, 1, size, size)."""
    site = SITES[patient.hospital]
    rng = random_stream(seed, STREAM, patient.hospital, 1, patient.number)
    frame = _frame(rng, patient.slices, image_size, site)
    signal = _draw_pelvis(rng, frame)
    gland, rectum = _draw_organs(rng, frame, signal, site)
    images = _scan(rng, signal, rectum, site)
    return to_bytes(images)[:, None], (gland > 0.5).astype(np.uint8)[:, None]


def _frame(rng: np.random.Generator, count: int, size: int, site: Site) -> Frame:
    middle, half = rng.normal(0, 0.12), rng.uniform(0.6, 0.9)
    height = np.clip(middle + half * np.linspace(-1, 1, count), -0.92, 0.92) if count > 1 else [middle]
    zoom = np.float32(site.zoom * rng.uniform(0.82, 1.2))
    x, y = grid(size)
    x, y = turned(x / zoom, y / zoom, rng.normal(0, 0.1))
    sway = column(rng.normal(0, 0.006, count))
    right, down = np.clip((rng.normal(0, 0.2), rng.normal(0, 0.18)), -0.36, 0.36).astype(np.float32)
    x, y = x - right - sway, y - down - sway
    return Frame(size, x, y, column(height))


def _draw_pelvis(rng: np.random.Generator, frame: Frame) -> Array:
    """Everything but the midline organs: fat, muscles, bones, vessels."""
    n, size, x, y = len(frame), frame.size, frame.x, frame.y
    fine, coarse = smooth_noise(rng, n, size, 22), smooth_noise(rng, n, size, 9)
    signal = np.full((n, size, size), AIR, dtype=np.float32)
    fat = FAT + 0.05 * coarse + 0.04 * fine
    muscle = MUSCLE + 0.03 * coarse + 0.04 * fine
    muscle += 0.3 * np.exp(
        -((smooth_noise(rng, n, size, 7) / np.float32(0.1)) ** 2)
    )  # fat between the muscles
    wide, deep = rng.uniform(1.02, 1.2), rng.uniform(0.78, 0.92)
    body = ellipse(x, y, 0, 0.05, wide, deep) + 0.02 * wobble(rng, np.arctan2(y, x), (2, 3, 4, 5), 1.0)
    paint(signal, inside(body, size), fat)
    paint(signal, inside(body + rng.uniform(0.12, 0.22) + 0.02 * coarse, size, 0.02), muscle)
    cleft = ellipse(x, y, 0, deep - 0.02, 0.05, 0.3)  # fat between the buttocks
    paint(signal, inside(np.maximum(cleft, body), size, 0.01), fat)

    pelvis = ellipse(x, y, 0, 0.02, rng.uniform(0.42, 0.5), rng.uniform(0.52, 0.62)) + 0.02 * coarse
    strands = np.clip(FAT - 0.02 + 0.10 * smooth_noise(rng, n, size, 14) + 0.06 * fine, 0.25, 0.9)
    paint(signal, inside(pelvis, size, 0.03), strands)
    for side in (-1, 1):
        hip = ellipse(x, y, side * rng.uniform(0.76, 0.84), rng.uniform(-0.12, 0), 0.21, 0.23)
        ischium = ellipse(x, y, side * 0.62, rng.uniform(0.25, 0.33), 0.09, 0.17, side * 0.4)
        pubis = ellipse(x, y, side * 0.17, rng.uniform(-0.6, -0.54), 0.15, 0.07, side * 0.35)
        marrow = MARROW + 0.06 * coarse
        for bone in (hip, ischium, pubis):
            paint(signal, inside(bone - 0.025, size), CORTEX)
            paint(signal, inside(bone, size), marrow)
        for cx, cy, a, b, angle in ((0.46, 0.0, 0.055, 0.32, 0.12), (0.3, 0.28, 0.03, 0.24, 0.5)):
            sheet = ellipse(x, y, side * cx, cy, a, b, side * angle)  # obturator and levator muscles
            paint(signal, inside(sheet, size, 0.01), muscle)
    for _ in range(rng.integers(5, 11)):  # vessels: bright veins, black arteries; and lumps of fat
        cx, cy = rng.uniform(0.2, 0.42) * rng.choice((-1, 1)), rng.uniform(-0.45, 0.4)
        radius, bright = rng.uniform(0.02, 0.06), rng.choice((VEIN, PERIPHERAL, 0.85, 0.1))
        drift = cx + 0.05 * rng.normal() * frame.height
        paint(signal, inside(ellipse(x, y, drift, cy, radius, radius * rng.uniform(0.6, 1.4)), size), bright)
    if rng.random() < 0.35:  # a bowel loop, as grey, lumpy and walled as the gland
        cx, cy, radius = rng.uniform(-0.32, 0.32), rng.uniform(-0.5, -0.25), rng.uniform(0.08, 0.14)
        loop = ellipse(x, y, cx, cy + 0.1 * frame.height, 1.3 * radius, radius) + 0.02 * coarse
        paint(signal, inside(loop - 0.02, size), WALL)
        lumps = 0.1 * smooth_noise(rng, n, size, 16) + 0.06 * fine
        paint(signal, inside(loop, size), rng.uniform(0.4, 0.65) + lumps)
    sacrum = ellipse(x, y, 0, rng.uniform(0.6, 0.68), 0.13, 0.06)
    paint(signal, inside(sacrum - 0.02, size), CORTEX)
    paint(signal, inside(sacrum, size), MARROW)
    return signal


def _draw_organs(rng: np.random.Generator, frame: Frame, signal: Array, site: Site) -> tuple[Array, Array]:
    """Bladder, rectum, seminal vesicles and the gland; returns the gland's cover, the rectum's distance."""
    n, size, x, y, height = len(frame), frame.size, frame.x, frame.y, frame.height
    a = rng.uniform(0.23, 0.38) * np.sqrt(1 - 0.6 * height**2)
    b = a * rng.uniform(0.66, 0.95)
    cx, cy = rng.normal(0, 0.05) + 0.02 * height, rng.uniform(-0.16, 0.08) - 0.06 * height
    fine, coarse = smooth_noise(rng, n, size, 24), smooth_noise(rng, n, size, 12)

    bladder_low = rng.uniform(0.25, 0.7)  # how high a slice must lie to show the bladder
    full = np.clip((height - bladder_low) * 2.5, 0.02, 0.65)
    bladder = ellipse(x, y, 0, cy - b - 0.22 * full, 0.45 * full, 0.25 * full) + 0.01 * coarse
    seen = height > bladder_low
    paint(signal, inside(bladder - 0.03, size) * seen, MUSCLE)
    paint(signal, inside(bladder, size) * seen, rng.uniform(0.8, 1.0) * URINE)

    coil = site.coil > 0
    radius = rng.uniform(0.17, 0.24) if coil else rng.uniform(0.08, 0.17)
    below = cy + b + radius + rng.uniform(0.02, 0.05)
    rectum = ellipse(x, y, rng.normal(0, 0.03), below, radius * rng.uniform(1, 1.3), radius) + 0.012 * coarse
    contents = rng.choice((AIR, 0.85, 0.5), p=(0.8, 0.2, 0) if coil else (0.35, 0.25, 0.4))
    paint(signal, inside(rectum - 0.035, size), WALL + 0.05 * fine)
    paint(signal, inside(rectum, size), contents * (1 + 0.15 * coarse))

    vesicles = rng.uniform(0.3, 0.6)
    for side in (-1, 1):
        tube = ellipse(x, y, cx + side * 1.0 * a, cy + 0.65 * b, 0.15, 0.05, side * -0.3) + 0.015 * fine
        paint(signal, inside(tube, size) * (height > vesicles), PERIPHERAL + 0.12 * fine)
        bundle = ellipse(x, y, cx + side * 0.85 * a, cy + 0.85 * b, 0.05, 0.035)
        paint(signal, inside(bundle + 0.01 * fine, size), VEIN + 0.1 * fine)
    stroma = ellipse(x, y, cx, cy - b - 0.03, 0.6 * a, 0.05)  # dark strands in front of the gland
    paint(signal, 0.7 * inside(stroma + 0.015 * coarse, size, 0.03), MUSCLE)

    theta = np.arctan2((y - cy) / b, (x - cx) / a)
    outline = wobble(rng, theta, (2, 3, 4, 5), 0.1) + 0.04 * smooth_noise(rng, n, size, 6)
    gland = ellipse(x, y, cx, cy, a, b) - outline * np.sqrt(a * b)
    cover = inside(gland, size)
    paint(signal, inside(gland - 0.025, size) * rng.uniform(0.7, 1.0), CAPSULE)
    paint(signal, cover, PERIPHERAL + rng.normal(0, 0.07) + 0.09 * fine + 0.05 * coarse)
    share = np.clip(rng.uniform(0.6, 0.8) + 0.15 * height, 0.3, 0.9)  # the inner zone grows towards the base
    inner = ellipse(x, y, cx, cy - (1 - share) * 0.8 * b, share * a, share * b) + 0.015 * coarse
    nodules = np.tanh(2 * smooth_noise(rng, n, size, 16))
    paint(signal, cover * inside(inner - 0.01, size), CAPSULE)
    paint(
        signal, cover * inside(inner, size), TRANSITION + rng.normal(0, 0.05) + 0.13 * nodules + 0.06 * fine
    )
    return cover, rectum


def _scan(rng: np.random.Generator, signal: Array, rectum: Array, site: Site) -> Array:
    """What the site's scanner makes of the anatomy."""
    n, size = len(signal), signal.shape[-1]
    drift = np.exp(site.bias * smooth_noise(rng, n, size, 2, shared=0.95))
    near = 1 + 1.2 * site.coil * np.exp(-np.clip(rectum, 0, None) / np.float32(0.22))
    # Texture may take tissue below 0, where a fractional power is not a number.
    bright = np.maximum(blur(signal, site.blur), np.float32(0))
    seen = bright ** np.float32(site.gamma * np.exp(rng.normal(0, 0.06))) * drift * near
    first, second = (site.noise * grain(rng, n, size, 0.6 * site.blur) for _ in range(2))
    seen = np.sqrt((seen + first) ** 2 + second**2)
    # A display window a patient, as the scanner's own software would choose it.
    top = np.quantile(seen, 0.98) * rng.uniform(0.95, 1.15)
    return np.asarray(site.offset + (1 - site.offset) * seen / top, dtype=np.float32)
