"""Test images with what the model says of them: outlines drawn over slices, classes with their probability.

Images are chosen by what they are, never by how well the model does on them, so that runs on the same data
show the same images. A picture names hospital and class, but neither patient nor file.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silodp.report.metric import class_name, shown

if TYPE_CHECKING:
    from silodp.cohorts import Cohort, HospitalData

SIZE = 192  # pixels of a picture, about
MOST_HOSPITALS = 6
EACH = 3  # slices of a hospital
SIZES = ("small", "middle", "large")
MOST_IMAGES = 8  # of a classification, over all hospitals


@dataclass(frozen=True)
class Picture:
    """An image as the page holds it; it names neither patient nor file."""

    source: str
    width: int
    height: int
    alt: str
    caption: tuple[str, ...]


@dataclass(frozen=True)
class Gallery:
    """Pictures in blocks, with a heading each where it is a hospital; `about`: how they were chosen."""

    about: str
    blocks: tuple[tuple[str, tuple[Picture, ...]], ...]
    legend: tuple[tuple[str, str], ...] = ()  # name and colour of each outline


Logits = NDArray[np.float64]


def outlines_of(
    cohort: Cohort,
    ask: Callable[[HospitalData], Logits],
    masks: Sequence[str],
    on_hospital: Callable[[int, int], None],
) -> Gallery:
    """A small, a middle and a large true outline of each hospital, with the predicted one."""
    from silodp.cohorts.contact_sheet.thumbnail import ink_of

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
        blocks.append((hospital.name, pictures))
        on_hospital(done, len(hospitals))
    about = (
        "They were chosen by the size of the true outline (a small, a middle and a large one of each "
        "hospital), not by how well the model does on them. Where both outlines run together, dashes of both "
        "colours alternate."
    )
    if len(hospitals) < len(cohort.hospitals):
        about += f" {len(hospitals)} of {len(cohort.hospitals)} hospitals are shown."
    inks = [ink_of(number) for number in range(len(kinds))]
    legend = tuple(
        (kind if ink.colour == ink.stripe else f"{kind} (striped)", ink.colour)
        for kind, ink in zip(kinds, inks, strict=True)
    )
    return Gallery(about, tuple(blocks), legend)


def _by_size(truth: NDArray[np.bool_]) -> list[tuple[int, str]]:
    """Of images with something marked, those at 10, 50 and 90 % by its size; the first if none has any."""
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
    return _picture(hospital.test.images[index].numpy(), np.concatenate([truth, predicted]), alt, caption)


def images_of(cohort: Cohort, logits: Mapping[str, Logits], classes: Sequence[str]) -> Gallery:
    """A few images with what they are and what the model takes them for."""
    names = [class_name(name) for name in classes]
    pictures = tuple(
        _image(hospital, index, logits[hospital.name][index], names) for hospital, index in _in_turn(cohort)
    )
    about = (
        "They were taken from each class in turn, another hospital every time, not chosen by how well the "
        "model does on them."
    )
    return Gallery(about, (("", pictures),))


def _in_turn(cohort: Cohort) -> list[tuple[HospitalData, int]]:
    """Images of the classes by turns, walking through the hospitals."""
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
    label = int(hospital.test.targets[index])
    if np.isfinite(logits).all():
        shares = np.exp(logits - logits.max())
        shares = shares / shares.sum()
        guess = int(shares.argmax())
        verdict = "right" if guess == label else "wrong"
        says = f"model: {_name(classes, guess)}, {shares[guess]:.0%} ({verdict})"
    else:
        says = "model: no answer (NaN)"
    caption = [f"truth: {_name(classes, label)}", says]
    alt = f"A test image of {hospital.name}; {'; '.join(caption)}"
    return _picture(hospital.test.images[index].numpy(), None, alt, [*caption, hospital.name])


def _name(classes: Sequence[str], number: int) -> str:
    return classes[number] if number < len(classes) else f"class {number}"


def _picture(
    image: NDArray[Any], masks: NDArray[np.bool_] | None, alt: str, caption: Sequence[str]
) -> Picture:
    from silodp.cohorts.contact_sheet.thumbnail import draw, png_bytes

    factor = max(1, SIZE // max(image.shape[1:]))  # enlarged first, so that outlines stay thin
    image = image.repeat(factor, 1).repeat(factor, 2)
    if masks is not None:
        masks = masks.repeat(factor, 1).repeat(factor, 2)
    pixels = draw(image, masks, 2 * SIZE)
    height, width = pixels.shape[:2]
    source = "data:image/png;base64," + b64encode(png_bytes(pixels)).decode()
    return Picture(source, width, height, alt, tuple(caption))


def _spread(hospitals: Sequence[HospitalData], most: int) -> list[HospitalData]:
    """So many of them, evenly along the list."""
    if len(hospitals) <= most:
        return list(hospitals)
    return [hospitals[index * len(hospitals) // most] for index in range(most)]
