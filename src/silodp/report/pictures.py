"""Test images with predictions: outlines over slices, classes with their probability.

Images are chosen regardless of how well the model does on them, so runs on the same data show the same
ones. A picture names hospital and class, but neither patient nor file.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.thumbnail import Ink, draw, ink_of, png_bytes
from silodp.report.metric import class_name, name_of, shown

if TYPE_CHECKING:
    from silodp.cohorts import Cohort, HospitalData

LARGEST = 384  # pixels of the longer side of a picture
MOST_HOSPITALS = 6
EACH = 3  # slices of a hospital
SIZES = ("small", "middle", "large")
MOST_IMAGES = 8  # for classification, over all hospitals


@dataclass(frozen=True)
class Picture:
    """An image for a page, which names neither patient nor file."""

    pixels: NDArray[np.uint8]
    alt: str
    caption: tuple[str, ...]

    @property
    def source(self) -> str:
        return "data:image/png;base64," + b64encode(png_bytes(self.pixels)).decode()

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])


@dataclass(frozen=True)
class Block:
    """A group of pictures; `name` is empty unless they are of one hospital."""

    name: str
    pictures: tuple[Picture, ...]
    about: str = ""


@dataclass(frozen=True)
class Gallery:
    """Groups of pictures; `about` says how they were chosen."""

    about: str
    blocks: tuple[Block, ...]
    legend: tuple[tuple[str, Ink], ...] = ()  # of outlines and classes


Logits = NDArray[np.float64]


def outlines_of(
    cohort: Cohort,
    ask: Callable[[HospitalData], Logits],
    masks: Sequence[str],
    on_hospital: Callable[[int, int], None],
) -> Gallery:
    """A small, a medium and a large true outline of each hospital, with the predicted ones."""
    kinds = [
        f"{which} outline" if len(masks) == 1 else f"{which}: {class_name(mask, 'mask')}"
        for which in ("true", "predicted")
        for mask in masks
    ]
    blocks = []
    hospitals = _spread(cohort.hospitals, MOST_HOSPITALS)
    for done, hospital in enumerate(hospitals, start=1):
        predicted, truth = ask(hospital) > 0, hospital.test.targets.numpy() > 0
        pictures = tuple(
            _slice(hospital, index, truth[index], predicted[index], size) for index, size in _by_size(truth)
        )
        blocks.append(Block(hospital.name, pictures))
        on_hospital(done, len(hospitals))
    about = (
        "They were chosen by the size of the true outline (a small, a middle and a large one of each "
        "hospital), not by how well the model does on them. Where both outlines run together, dashes of both "
        "colours alternate."
    )
    if len(hospitals) < len(cohort.hospitals):
        about += f" {len(hospitals)} of {len(cohort.hospitals)} hospitals are shown."
    legend = tuple((kind, ink_of(number)) for number, kind in enumerate(kinds))
    return Gallery(about, tuple(blocks), legend)


def _by_size(truth: NDArray[np.bool_]) -> list[tuple[int, str]]:
    """Images at 10, 50 and 90 % of the marked area among those with any; the first image if none has."""
    areas = truth.reshape(len(truth), -1).sum(1)
    marked = np.flatnonzero(areas)
    if len(marked) < EACH:
        return [(int(index), "") for index in (marked if len(marked) else range(min(1, len(truth))))]
    order = marked[np.argsort(areas[marked], kind="stable")]
    return [
        (int(order[round(share * (len(order) - 1))]), size)
        for share, size in zip((0.1, 0.5, 0.9), SIZES, strict=True)
    ]


def _slice(
    hospital: HospitalData, index: int, truth: NDArray[np.bool_], predicted: NDArray[np.bool_], size: str
) -> Picture:
    overlap, both = (truth & predicted).sum(), truth.sum() + predicted.sum()
    dice = 2 * overlap / both if both else 1.0
    caption = [(f"{size}: " if size else "") + f"Dice {shown(float(dice), 2)}"]
    if not predicted.any():
        caption.append("nothing predicted")
    if not truth.any():
        caption.append("nothing marked")
    alt = f"A test slice of {hospital.name} with its true and its predicted outline, {', '.join(caption)}"
    pixels = draw(hospital.test.images[index].numpy(), np.concatenate([truth, predicted]), LARGEST)
    return Picture(pixels, alt, tuple(caption))


def images_of(cohort: Cohort, logits: Mapping[str, Logits], classes: Sequence[str]) -> Gallery:
    """A few images with true and predicted class."""
    pictures = tuple(
        _image(hospital, index, logits[hospital.name][index], classes) for hospital, index in _in_turn(cohort)
    )
    about = (
        "They were taken from each class in turn, another hospital every time, not chosen by how well the "
        "model does on them."
    )
    return Gallery(about, (Block("", pictures),))


def _in_turn(cohort: Cohort) -> list[tuple[HospitalData, int]]:
    """Images of alternating classes, from one hospital after the other."""
    count = max(int(hospital.test.targets.max()) for hospital in cohort.hospitals) + 1
    chosen: list[tuple[HospitalData, int]] = []
    taken: set[tuple[str, int]] = set()
    places = len(cohort.hospitals)
    for number in range(MOST_IMAGES * 4):
        hospital = cohort.hospitals[(number + number // places) % places]
        for index in np.flatnonzero(hospital.test.targets.numpy() == number % count).tolist():
            if (hospital.name, index) not in taken and len(chosen) < MOST_IMAGES:
                taken.add((hospital.name, index))
                chosen.append((hospital, index))
                break
    return chosen


def _image(hospital: HospitalData, index: int, logits: Logits, classes: Sequence[str]) -> Picture:
    from scipy.special import softmax

    label = int(hospital.test.targets[index])
    if np.isfinite(logits).all():
        shares = softmax(logits)
        guess = int(shares.argmax())
        verdict = "right" if guess == label else "wrong"
        says = f"model: {name_of(guess, classes)}, {shares[guess]:.0%} ({verdict})"
    else:
        says = "model: no answer (NaN)"
    caption = [f"truth: {name_of(label, classes)}", says]
    alt = f"A test image of {hospital.name}; {'; '.join(caption)}"
    pixels = draw(hospital.test.images[index].numpy(), None, LARGEST)
    return Picture(pixels, alt, (*caption, hospital.name))


def _spread(hospitals: Sequence[HospitalData], most: int) -> list[HospitalData]:
    """At most that many hospitals, evenly spaced in the list."""
    if len(hospitals) <= most:
        return list(hospitals)
    return [hospitals[index * len(hospitals) // most] for index in range(most)]
