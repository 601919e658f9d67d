"""The made-up CT cohort: repeatable, divided by patient, both classes everywhere, not trivially solved."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from silodp.cohorts.cohort import Cohort
from silodp.cohorts.synthetic_ct import ct_patients, draw_ct_patient, synthetic_ct
from silodp.errors import InputError


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return synthetic_ct(hospitals=6, slices=360, image_size=32)


def together(cohort: Cohort, part: str, field: str) -> Tensor:
    return torch.cat([getattr(hospital.parts[part], field) for hospital in cohort.hospitals])


def ranking(score: Tensor, label: Tensor) -> float:
    """Area under the ROC curve."""
    positive, negative = score[label == 1], score[label == 0]
    difference = positive[:, None] - negative[None]
    return float((difference > 0).float().mean() + 0.5 * (difference == 0).float().mean())


def test_same_seed_same_cohort() -> None:
    first, again, other = (
        synthetic_ct(hospitals=2, slices=20, image_size=32, seed=seed) for seed in (1, 1, 2)
    )
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != other.fingerprint()


def test_a_hospital_does_not_depend_on_the_others() -> None:
    few, many = (synthetic_ct(hospitals=n, slices=12 * n, image_size=32) for n in (2, 5))
    for alone, among in zip(few.hospitals, many.hospitals[:2], strict=True):
        for part, examples in alone.parts.items():
            assert torch.equal(examples.images, among.parts[part].images)
            assert torch.equal(examples.targets, among.parts[part].targets)


def test_sizes_are_equal() -> None:
    cohort = synthetic_ct(hospitals=4, slices=50, image_size=32)
    assert [len(hospital.train) for hospital in cohort.hospitals] == [13, 13, 12, 12]
    assert all(len(hospital.validation) == len(hospital.test) == 4 for hospital in cohort.hospitals)
    assert len({hospital.name for hospital in cohort.hospitals}) == 4


def test_no_patient_in_two_parts(cohort: Cohort) -> None:
    for number, hospital in enumerate(cohort.hospitals):
        patients = ct_patients(number, train=60, seed=0)
        assert len({patient.number for patient in patients}) == len(patients)
        # The cohort is made of exactly these patients: draw each one again and compare.
        for part, examples in hospital.parts.items():
            drawn = [
                draw_ct_patient(p, image_size=32, channels=3, seed=0) for p in patients if p.part == part
            ]
            assert torch.equal(
                torch.from_numpy(np.concatenate([images for images, _ in drawn])), examples.images
            )
            assert torch.equal(
                torch.from_numpy(np.concatenate([labels for _, labels in drawn])), examples.targets
            )


def test_only_bleeding_patients_bleed() -> None:
    clean_slices = 0
    for patient in ct_patients(0, train=90, seed=0):
        _, labels = draw_ct_patient(patient, image_size=32, channels=1, seed=0)
        assert labels.any() == patient.bleeding
        clean_slices += int((labels == 0).sum()) if patient.bleeding else 0
    assert clean_slices > 0


@pytest.mark.parametrize("train", [2, 3, 5, 8, 60])
def test_both_classes_everywhere(train: int) -> None:
    for seed in range(4):
        cohort = synthetic_ct(hospitals=3, slices=3 * train, image_size=32, channels=1, seed=seed).check()
        for hospital in cohort.hospitals:
            for examples in hospital.parts.values():
                assert examples.targets.unique().tolist() == [0, 1]


def test_classes_are_about_even(cohort: Cohort) -> None:
    for hospital in cohort.hospitals:
        assert 0.35 < float(hospital.train.targets.float().mean()) < 0.65
    assert 0.4 < float(together(cohort, "test", "targets").float().mean()) < 0.6


@pytest.mark.parametrize(("image_size", "channels"), [(32, 1), (33, 3), (128, 3)])
def test_shapes_and_types(image_size: int, channels: int) -> None:
    cohort = synthetic_ct(hospitals=2, slices=12, image_size=image_size, channels=channels).check()
    for hospital in cohort.hospitals:
        for examples in hospital.parts.values():
            assert examples.images.shape == (len(examples), channels, image_size, image_size)
            assert examples.images.dtype == torch.uint8
            assert examples.targets.shape == (len(examples),)
            assert examples.targets.dtype == torch.int64
            assert int(examples.images.max()) > 200


def test_one_channel_is_the_brain_window() -> None:
    one, three = (synthetic_ct(hospitals=1, slices=8, image_size=32, channels=c) for c in (1, 3))
    assert torch.equal(one.hospitals[0].train.images, three.hospitals[0].train.images[:, :1])


def test_hospitals_differ(cohort: Cohort) -> None:
    # Local roughness of the middle of the brain, which noise and kernel set.
    def roughness(images: Tensor) -> list[float]:
        middle = images[:, 0, 10:22, 10:22].float()
        return (middle[:, 1:] - middle[:, :-1]).abs().mean((1, 2)).tolist()

    assert stats.kruskal(*(roughness(one.train.images) for one in cohort.hospitals)).pvalue < 1e-4


def test_trivial_baselines_fail(cohort: Cohort) -> None:
    parts = ("train", "validation", "test")
    images = torch.cat([together(cohort, part, "images") for part in parts]).float()
    labels = torch.cat([together(cohort, part, "targets") for part in parts])
    for channel in range(3):
        assert 0.4 < ranking(images[:, channel].mean((1, 2)), labels) < 0.6
        assert 0.35 < ranking(images[:, channel].amax((1, 2)), labels) < 0.65


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hospitals": 0}, "hospitals is 0; give 1 or more"),
        ({"hospitals": 5, "slices": 9}, "slices is 9 for 5 hospitals; give at least 10"),
        ({"channels": 2}, r"channels is 2; give 1 \(brain window\) or 3"),
        ({"image_size": 16}, "image_size is 16; give 32 to 256"),
        ({"seed": -1}, "seed is -1; give 0 or more"),
    ],
)
def test_refuses(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        synthetic_ct(**arguments)
