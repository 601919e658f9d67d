"""The kinds of generated images from which a start can be made."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silodp.cohorts.synthetic import Patient, random_stream
from silodp.cohorts.synthetic_ct import draw_ct_patient
from silodp.cohorts.synthetic_mri import SITES, draw_mri_patient
from silodp.errors import InputError, did_you_mean
from silodp.pretraining.clutter import clutter
from silodp.pretraining.randomise import Style
from silodp.pretraining.shapes import draw_shapes

SLICES = 8  # of a generated patient, for starts: more patients teach more than more slices
Drawn = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Images of a patient and masks of the target, (n, 1, s, s); the class is whether a mask is empty."""


@dataclass(frozen=True)
class Generated:
    """A kind of generated images.

    Attributes:
        about: description.
        task: of a start that is trained on them.
        drawn_at: pixels at which images are drawn for a network that sees 96; in proportion for others.
        draw: draws one patient from (number, size, seed, slices).
        style: the augmentation in training.
    """

    about: str
    task: str
    drawn_at: int
    draw: Callable[..., Drawn]
    style: Style


def _pelvis(number: int, size: int, seed: int, slices: int = SLICES) -> Drawn:
    patient = Patient(number % len(SITES), number, slices)
    return draw_mri_patient(patient, image_size=size, seed=seed)


def _head(number: int, size: int, seed: int, slices: int = SLICES) -> Drawn:
    # Every patient has another scanner.
    patient = Patient(number, number, slices, bleeding=bool(random_stream(seed, 4, number).random() < 0.6))
    images, labels, cover = draw_ct_patient(patient, image_size=size, channels=1, seed=seed)
    masks = ((cover > 0.5) & (labels[:, None, None] > 0)).astype(np.uint8)[:, None]
    return clutter(random_stream(seed, 6, number), images, masks), masks


def _shapes(number: int, size: int, seed: int, slices: int = SLICES, lesions: bool = False) -> Drawn:
    drawings = [draw_shapes(slices * number + one, image_size=size, seed=seed) for one in range(slices)]
    return np.stack([one[0] for one in drawings]), np.stack([one[2 if lesions else 1] for one in drawings])


GENERATED = {
    "pelvis": Generated(
        "pelvic MRI slices with the prostate outlined",
        "segmentation",
        160,
        _pelvis,
        Style(zoom=(0.45, 2.6), on_target=True, shift=0.12, turn=12, dark=True),
    ),
    "head": Generated(
        "head CT slices with and without a bleed",
        "classification",
        96,
        _head,
        Style(
            zoom=(0.55, 1.2),
            shift=0.1,
            any_way=True,
            wobble=0.02,
            contrast=0.3,
            texture=0.1,
            drift=0.1,
            noise=0.06,
            dark=True,
        ),
    ),
    "shapes": Generated(
        "random shapes in random bodies, the one in the middle outlined",
        "segmentation",
        96,
        _shapes,
        Style(any_way=True),
    ),
    "lesions": Generated(
        "random shapes in random bodies, the one in the middle with or without a lesion",
        "classification",
        96,
        partial(_shapes, lesions=True),
        Style(any_way=True, contrast=0.5),
    ),
}
"""By name, as in `silodp pretrain NAME`."""


def generated(name: str) -> Generated:
    if name not in GENERATED:
        raise InputError(
            f"generator {name!r}: choose one of {', '.join(GENERATED)}" + did_you_mean(name, GENERATED)
        )
    return GENERATED[name]


def draw_images(
    kind: Generated,
    images: int,
    image_size: int,
    seed: int,
    on_drawn: Callable[[int, int], None],
    slices: int = SLICES,
) -> tuple[Tensor, Tensor]:
    """Draws `images` or more images, patient after patient, and their masks; uses all cores.

    Args:
        image_size: that the network will see; images are drawn larger where the style zooms in.
        on_drawn: called with the number of patients drawn and of all patients.
        slices: of each patient.

    Returns:
        Images and masks, both (n, 1, s, s) uint8 on the CPU.
    """
    size = min(256, max(32, round(image_size * kind.drawn_at / 96)))
    patients = -(-images // slices)
    drawings = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        draw = partial(kind.draw, size=size, seed=seed, slices=slices)
        for done, drawing in enumerate(pool.map(draw, range(patients)), start=1):
            drawings.append(drawing)
            on_drawn(done, patients)
    pictures = np.concatenate([drawn for drawn, _ in drawings])
    masks = np.concatenate([drawn for _, drawn in drawings])
    return torch.from_numpy(pictures), torch.from_numpy(masks)
