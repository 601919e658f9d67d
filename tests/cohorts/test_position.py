"""The guess by position alone: right where position tells the class, worthless where it does not."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from silodp.cohorts.partition import Placement
from silodp.cohorts.position import _auc, position_auc

Array = NDArray[np.float64]
SLICES = 30


def cohort(
    hospitals: int = 4, patients: int = 9, slices: int = SLICES
) -> tuple[NDArray[np.int64], Placement, list[str]]:
    """The slice number of each image in its scan; a third of each hospital's patients in each part."""
    count = hospitals * patients
    number = np.tile(np.arange(slices), count)
    person = np.repeat(np.arange(count), slices)
    hospital, part = person // patients, person % 3
    names = tuple(f"h{index}" for index in range(hospitals))
    return number, Placement(names, hospital, part, True, "", ()), [f"p{index}" for index in person]


def only(kept: NDArray[Any], placement: Placement, patients: list[str]) -> tuple[Placement, list[str]]:
    """The images that are kept, or all in this order."""
    some = Placement(placement.hospitals, placement.hospital[kept], placement.part[kept], True, "", ())
    return some, np.array(patients)[kept].tolist()


def auc(
    position: Callable[[NDArray[np.int64], NDArray[np.int64]], Array],
    label: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
) -> float | None:
    """The figure for positions and labels that are functions of the slice's number (and the patient's)."""
    number, placement, patients = cohort()
    person = np.array([int(patient[1:]) for patient in patients])
    return position_auc(position(number, person), label(number).astype(np.int64), placement, patients)


@pytest.mark.parametrize(
    "label",
    [
        lambda number: number >= 12,
        lambda number: number < 12,
        lambda number: (number >= 9) & (number < 18),  # neither end
        lambda number: (number < 6) | (number >= 24),  # both
    ],
)
@pytest.mark.parametrize("step", [5.0, -5.0, 0.001])
def test_position_that_tells_the_class_is_always_right(
    label: Callable[..., NDArray[np.bool_]], step: float
) -> None:
    assert auc(lambda number, person: number * step - 40.0, label) == 1.0


def test_relative_position_counts_where_tables_stand_at_unlike_heights() -> None:
    found = auc(lambda number, person: number * 2.0 + 7919.0 * person % 1000, lambda number: number >= 18)
    assert found == 1.0


def test_raw_position_counts_where_scans_begin_at_unlike_heights() -> None:
    """Each patient's scan is cut off somewhere: the rank then says less than the height itself."""
    number, placement, patients = cohort(slices=60)
    person = np.array([int(patient[1:]) for patient in patients])
    kept = (number >= person * 7 % 40) & (number < person * 7 % 40 + 20)
    found = position_auc(
        number[kept] / 1.0, (number[kept] >= 30).astype(np.int64), *only(kept, placement, patients)
    )
    assert found is not None
    assert found > 0.99


def test_labels_that_have_nothing_to_do_with_position_give_one_half() -> None:
    number, placement, patients = cohort(hospitals=10, patients=60)
    labels = np.random.default_rng(0).integers(0, 2, len(number))
    assert position_auc(number / 1.0, labels, placement, patients) == pytest.approx(0.5, abs=0.03)


def test_one_position_for_all_gives_exactly_one_half() -> None:
    number, placement, patients = cohort()
    assert position_auc(number * 0.0, number % 2, placement, patients) == 0.5


def test_noisy_labels_give_the_area_in_closed_form() -> None:
    """Class 1 with chance a above the middle and b below: one threshold, so (1 + tpr - fpr) / 2."""
    a, b = 0.8, 0.1
    number, placement, patients = cohort(hospitals=5, patients=240)
    high = number >= SLICES // 2
    labels = (np.random.default_rng(1).random(len(number)) < np.where(high, a, b)).astype(np.int64)
    hit, false = a / (a + b), (1 - a) / (2 - a - b)
    found = position_auc(number / 1.0, labels, placement, patients)
    assert found == pytest.approx((1 + hit - false) / 2, abs=0.016)  # five σ


def test_the_mean_is_over_hospitals_and_leaves_out_those_of_one_class() -> None:
    """In one hospital the rule is turned round: area 0. In another, test images have one class: left out."""
    number, placement, patients = cohort(hospitals=5)
    labels = (number >= 15).astype(np.int64)
    test = placement.part == 2
    odd = test & (placement.hospital == 1)
    labels[odd] = 1 - labels[odd]
    labels[test & (placement.hospital == 2)] = 0
    assert position_auc(number / 1.0, labels, placement, patients) == pytest.approx(3 / 4)


def test_hospitals_count_alike_whatever_their_size() -> None:
    number, placement, patients = cohort(hospitals=2, patients=30)
    labels = (number >= 15).astype(np.int64)
    test = placement.part == 2
    odd = test & (placement.hospital == 1)
    labels[odd] = 1 - labels[odd]
    kept = ~odd | (np.array(patients) == "p32")  # one patient of the second hospital's test part
    assert position_auc(number[kept] / 1.0, labels[kept], *only(kept, placement, patients)) == 0.5


def test_training_images_alone_teach() -> None:
    """Validation and test follow the opposite rule: whoever learned from them would be right."""
    number, placement, patients = cohort()
    labels = (number >= 15).astype(np.int64)
    labels[placement.part != 0] ^= 1
    assert position_auc(number / 1.0, labels, placement, patients) == 0.0


def test_ranks_are_taken_where_validation_prefers_them() -> None:
    """Validation: heights above all known ones, right ranks. Test: heights below them, wrong ranks."""
    number, placement, patients = cohort()
    positions = np.choose(placement.part, [number, number + 1000.0, -number - 1.0])
    labels = (number >= 15).astype(np.int64)
    assert position_auc(positions, labels, placement, patients) == 0.0  # heights would give 1/2


def half_scans(
    number: NDArray[np.int64], placement: Placement, patients: list[str]
) -> tuple[Array, list[str]]:
    """Validation scans of one half of the heights each, whose ranks say nothing."""
    upper = number >= SLICES // 2
    halves = [
        f"{patient} {up}" if part == 1 else patient
        for patient, up, part in zip(patients, upper, placement.part, strict=True)
    ]
    return number / 1.0, halves


def test_heights_are_taken_where_validation_prefers_them() -> None:
    number, placement, patients = cohort()
    positions, halves = half_scans(number, placement, patients)
    positions[placement.part == 2] += 1000
    labels = (number >= 15).astype(np.int64)
    assert position_auc(positions, labels, placement, halves) == 0.5  # ranks would give 1


def test_heights_below_all_known_ones_get_the_overall_share() -> None:
    """A fifth of the training slices lie at one height, so no training slice lies below the first edge."""
    number, placement, patients = cohort()
    positions, halves = half_scans(np.maximum(number, 6), placement, patients)
    labels = (number >= 15).astype(np.int64)
    test = placement.part == 2
    positions[test] = np.where(number[test] < 10, -1.0, np.where(number[test] < 20, 8.0, 20.0))
    labels[test] = number[test] >= 20
    labels[test & (number < 5)] = 1
    # Shares 1/2, 0 and 1 for ten slices each; of the first ten, five are ill: 15 ill and 15 well ones.
    wins = 10 * 15 + 5 * 10 + 5 * 5 / 2
    assert position_auc(positions, labels, placement, halves) == pytest.approx(wins / (15 * 15))


def test_ids_may_be_unique_within_a_hospital_only() -> None:
    number, placement, patients = cohort()
    person = np.array([int(patient[1:]) for patient in patients])
    heights = number + np.random.default_rng(4).uniform(0, 40, 36)[person]
    labels = (number >= 18).astype(np.int64)
    assert position_auc(heights, labels, placement, patients) == 1.0
    assert position_auc(heights, labels, placement, [f"p{index % 9}" for index in person]) == 1.0


def test_scans_that_touch_do_not_mix() -> None:
    """Each scan begins at the height at which the one before it ended."""
    assert auc(lambda number, person: number + (SLICES - 1.0) * person, lambda number: number >= 18) == 1.0


def test_scans_of_unlike_length_compare() -> None:
    """Some patients have every second slice only."""
    number, placement, patients = cohort()
    person = np.array([int(patient[1:]) for patient in patients])
    kept = (person % 2 == 0) | (number % 2 == 0)
    heights, labels = number + 7919.0 * person % 1000, (number >= 18).astype(np.int64)
    assert position_auc(heights[kept], labels[kept], *only(kept, placement, patients)) == 1.0


def test_two_scans_of_a_patient_at_the_same_heights_share_ranks() -> None:
    number, placement, patients = cohort()
    pairs = [
        f"p{int(patient[1:]) // 9 * 9 + int(patient[1:]) % 3}" for patient in patients
    ]  # three scans each
    offset = np.array([7919.0 * int(patient[1:]) % 1000 for patient in pairs])
    assert position_auc(number + offset, (number >= 18).astype(np.int64), placement, pairs) == 1.0


def test_the_order_of_the_images_does_not_matter() -> None:
    number, placement, patients = cohort()
    labels = (np.random.default_rng(2).random(len(number)) < number / SLICES).astype(np.int64)
    mixed = np.random.default_rng(3).permutation(len(number))
    first = position_auc(number / 1.0, labels, placement, patients)
    again = position_auc(number[mixed] / 1.0, labels[mixed], *only(mixed, placement, patients))
    assert first is not None
    assert 0.6 < first < 0.95
    assert again == pytest.approx(first, abs=1e-12)


@pytest.mark.parametrize(
    "missing", ["NaN", "infinity", "patient", "one class", "three classes", "no healthy test image", "masks"]
)
def test_without_what_it_needs_there_is_no_figure(missing: str) -> None:
    number, placement, patients = cohort()
    positions, labels = number / 1.0, (number >= 15).astype(np.int64)
    if missing == "no healthy test image":
        labels[placement.part == 2] = 1
    elif "class" in missing:
        labels = number % (1 if missing == "one class" else 3)
    elif missing in ("NaN", "infinity"):
        positions[17] = math.nan if missing == "NaN" else math.inf
    people = [None, *patients[1:]] if missing == "patient" else patients
    assert position_auc(positions, None if missing == "masks" else labels, placement, people) is None


def test_one_class_in_every_validation_part_is_no_obstacle() -> None:
    number, placement, patients = cohort()
    labels = (number >= 15).astype(np.int64)
    labels[placement.part == 1] = 0
    assert position_auc(number / 1.0, labels, placement, patients) == 1.0


def test_the_area_is_monais() -> None:
    from monai.metrics import compute_roc_auc

    rng = np.random.default_rng(3)
    scores, truth = rng.integers(0, 9, 200).astype(float), rng.random(200) < 0.3  # with ties
    theirs = compute_roc_auc(torch.from_numpy(scores), torch.from_numpy(truth).long())
    assert _auc(scores, truth) == pytest.approx(float(theirs), rel=1e-12)
