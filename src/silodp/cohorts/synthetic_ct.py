"""Made-up head CT slices with and without a bleed, for trying things out without patients' data."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.kinds import Classes, SyntheticCohort
from silodp.cohorts.sources.windows import WINDOWS
from silodp.cohorts.synthetic import (
    Array,
    Drawing,
    Patient,
    blur,
    column,
    ellipse,
    grain,
    inside,
    paint,
    part_sizes,
    random_stream,
    smooth_noise,
    to_bytes,
)
from silodp.cohorts.synthetic_head import GREY, Head, Scanner, draw_calcifications, draw_head, draw_streaks
from silodp.errors import InputError
from silodp.settings import Count

STREAM = 1  # keeps these random streams apart from the MRI ones
SLICES_A_PATIENT = (2, 6)
SHARE_WITHOUT_BLEED = 0.2  # of a bleeding patient's slices

SUBTYPES = ("intraparenchymal", "subdural", "epidural", "intraventricular", "subarachnoid")
VENTRICLE_LEVELS = (0.36, 0.72)  # below and above, there is no ventricle to bleed into


class SyntheticCt(SyntheticCohort):
    """Made-up head CT slices, with and without a bleed."""

    task: ClassVar[str | None] = "classification"
    kind: Literal["synthetic-ct"] = "synthetic-ct"
    hospitals: Count = 20
    channels: Literal[1, 3] = 1
    """3: a CT window each."""
    classes: Classes | None = 2

    def train_sizes(self) -> list[int]:
        """Equal ones."""
        if self.slices < 2 * self.hospitals:
            raise InputError(
                f"cohort.slices = {self.slices} with cohort.hospitals = {self.hospitals}: "
                f"give at least {2 * self.hospitals}, so that each has both classes"
            )
        each, more = divmod(self.slices, self.hospitals)
        return [each + (number < more) for number in range(self.hospitals)]

    def patients(self, hospital: int, train: int) -> list[Patient]:
        """One hospital's patients, with about as many slices of either class in every part."""
        patients = []
        for part, wanted in enumerate(part_sizes(train, smallest=2)):
            rng = random_stream(self.seed, STREAM, hospital, 0, part)
            first_bleeds = bool(rng.random() < 0.5)
            done, bleeds, turn = 0, 0.0, 0
            while done < wanted:
                # Half the part at most, so that even the smallest part has a patient of either kind.
                count = int(rng.integers(SLICES_A_PATIENT[0], SLICES_A_PATIENT[1] + 1))
                count = min(count, wanted - done, max(1, wanted // 2))
                bleeding = first_bleeds if turn == 0 else bleeds * 2 < done
                patients.append(Patient(hospital, len(PARTS) * turn + part, count, bleeding))
                done, turn = done + count, turn + 1
                bleeds += count * (1 - SHARE_WITHOUT_BLEED) if bleeding else 0
        return patients

    def draw_patient(self, patient: Patient) -> Drawing:
        images, labels, _ = draw_ct_patient(
            patient, image_size=self.image_size, channels=self.channels, seed=self.seed
        )
        return images, labels


def draw_ct_patient(
    patient: Patient, *, image_size: int, channels: int, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], Array]:
    """Draws one patient.

    Args:
        patient: whose scanner and anatomy follow from its hospital, its number and the seed.
        image_size: width and height in pixels.
        channels: 3 for the brain, subdural and bone windows; 1 for the brain window only.
        seed: same seed, same images.

    Returns:
        Images (slices, channels, size, size); labels (slices,), 1 with a bleed and 0 without; and how much of
        each pixel the bleed covers, (slices, size, size).
    """
    scanner = _scanner(patient.hospital, seed)
    rng = random_stream(seed, STREAM, patient.hospital, 1, patient.number)
    head = draw_head(rng, patient.slices, image_size, scanner)
    labels, cover = np.zeros(patient.slices, dtype=np.int64), np.zeros_like(head.units)
    if patient.bleeding:
        labels, cover = _draw_bleed(rng, head)
    draw_calcifications(rng, head)
    draw_streaks(rng, head, scanner)
    units = blur(head.units, scanner.blur)
    units += np.float32(scanner.noise) * grain(rng, patient.slices, image_size, 0.6 * scanner.blur)
    windows = [
        to_bytes((units + np.float32(scanner.shift - level)) / np.float32(width) + 0.5)
        for level, width in WINDOWS[:channels]
    ]
    return np.stack(windows, axis=1), labels, cover


def _scanner(hospital: int, seed: int) -> Scanner:
    rng = random_stream(seed, STREAM, hospital, 2)
    return Scanner(
        noise=rng.uniform(2.0, 4.5),
        blur=rng.uniform(0.010, 0.024),
        shift=rng.uniform(-4, 4),
        angle=rng.normal(0, 0.06),
        streaks=rng.uniform(0.5, 1.5),
    )


def _draw_bleed(rng: np.random.Generator, head: Head) -> tuple[NDArray[np.int64], Array]:
    """Draws one bleed of a random kind; returns which slices have it, and where."""
    count = len(head.units)
    clean = min(int(rng.binomial(count, SHARE_WITHOUT_BLEED)), count - 1)
    before = int(rng.integers(0, clean + 1))
    bleeding = (np.arange(count) >= before) & (np.arange(count) < count - (clean - before))
    levels = head.level[bleeding]
    inner = VENTRICLE_LEVELS[0] <= levels.min() and levels.max() <= VENTRICLE_LEVELS[1]
    kinds = [kind for kind in SUBTYPES if inner or kind != "intraventricular"]
    kind = kinds[int(rng.integers(len(kinds)))]
    place = np.arange(count) - (before + (bleeding.sum() - 1) / 2)
    extent = column(np.sqrt(1 - 0.5 * (place / max(bleeding.sum() / 2, 1)) ** 2 * bleeding))
    dense = GREY + rng.uniform(14, 40)
    cover = column(bleeding) * head.brain * _bleed_cover(rng, head, kind, extent)
    if kind == "intraparenchymal":
        head.units[...] -= 8 * blur(cover, 0.06) * head.brain  # a dark rim of swelling
    paint(head.units, cover, dense + 3 * smooth_noise(rng, count, head.size, 10))
    return bleeding.astype(np.int64), cover


def _bleed_cover(rng: np.random.Generator, head: Head, kind: str, extent: Array) -> Array:
    """Where a bleed of this kind lies; `extent` shrinks it towards its upper and lower end."""
    count, size = len(head.units), head.size
    where = rng.uniform(-np.pi, np.pi)
    around = np.abs((head.theta - np.float32(where) + np.pi) % (2 * np.pi) - np.pi)
    if kind == "intraparenchymal":
        reach = float(head.depth.max((1, 2)).min())  # stay inside the smallest slice
        cx, cy = reach * rng.uniform(0.2, 0.6) * rng.choice((-1, 1)), reach * rng.uniform(-0.65, 0.7)
        radius, ratio = rng.uniform(0.07, 0.2), rng.uniform(0.75, 1.35)
        lump = ellipse(head.u, head.v, cx, cy, radius * ratio * extent, radius / ratio * extent)
        lump += 0.02 * smooth_noise(rng, count, size, 10)
        return inside(lump, size, 0.02)
    if kind in ("subdural", "epidural"):
        flat = kind == "subdural"
        thick = rng.uniform(0.06, 0.13) if flat else rng.uniform(0.11, 0.21)
        span = rng.uniform(0.7, 1.2) if flat else rng.uniform(0.35, 0.55)
        edge = thick * extent * np.clip(1 - (around / span) ** 2, -1, 1)
        cover: Array = inside(head.depth - edge, size, 0.01) * (edge > 0)
        return cover
    if kind == "intraventricular":
        filled = inside(rng.uniform(-0.05, 0.12) - head.v, size, 0.03)  # blood sinks to the back
        one_side = rng.random() < 0.5
        side = inside(-head.u * np.float32(rng.choice((-1, 1))), size, 0.05) if one_side else 1.0
        cover = head.ventricles * filled * side
        return cover
    cover = np.clip(2 * head.sulci, 0, 1) * np.clip(1.5 - around / rng.uniform(1.0, 1.8), 0, 1)
    return cover
