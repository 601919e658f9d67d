"""The made-up MRI cohort: repeatable, divided by patient, unlike from site to site, not trivially solved."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from silodp.cohorts.cohort import Cohort
from silodp.cohorts.synthetic import Patient, to_bytes
from silodp.cohorts.synthetic_mri import SITES, draw_mri_patient, mri_patients, synthetic_mri, train_sizes
from silodp.errors import InputError


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return synthetic_mri(slices=180, image_size=48, seed=3)


def together(cohort: Cohort, part: str, field: str) -> Tensor:
    return torch.cat([getattr(hospital.parts[part], field) for hospital in cohort.hospitals])


def dice(guess: Tensor, truth: Tensor) -> float:
    guess, truth = guess.expand_as(truth).flatten(1).float(), truth.flatten(1).float()
    return float((2 * (guess * truth).sum(1) / (guess.sum(1) + truth.sum(1))).mean())


def test_same_seed_same_cohort() -> None:
    first, again, other = (synthetic_mri(slices=30, image_size=32, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != other.fingerprint()


def test_a_hospital_does_not_depend_on_the_others() -> None:
    few, all_six = (synthetic_mri(hospitals=count, slices=40, image_size=32) for count in (2, 6))
    for alone, among in zip(few.hospitals, all_six.hospitals[:2], strict=True):
        for part, examples in alone.parts.items():
            assert torch.equal(examples.images, among.parts[part].images)
            assert torch.equal(examples.targets, among.parts[part].targets)


def test_more_slices_only_add_patients() -> None:
    few, many = mri_patients(0, train=20, seed=0), mri_patients(0, train=60, seed=0)
    assert {p.number for p in few} < {p.number for p in many}


@pytest.mark.parametrize("slices", [12, 60, 480, 2808])
def test_sizes_follow_the_paper(slices: int) -> None:
    sizes = train_sizes(slices)
    assert sum(sizes) == slices
    total = sum(site.weight for site in SITES)
    assert all(abs(size - slices * site.weight / total) <= 1 for size, site in zip(sizes, SITES, strict=True))


def test_parts_are_60_20_20(cohort: Cohort) -> None:
    assert [hospital.name for hospital in cohort.hospitals] == [site.name for site in SITES]
    assert len(together(cohort, "train", "images")) == 180
    for hospital in cohort.hospitals:
        assert len(hospital.validation) == len(hospital.test) == max(1, round(len(hospital.train) / 3))


def test_no_patient_in_two_parts(cohort: Cohort) -> None:
    for number, (hospital, train) in enumerate(zip(cohort.hospitals, train_sizes(180), strict=True)):
        patients = mri_patients(number, train=train, seed=3)
        assert len({patient.number for patient in patients}) == len(patients)
        # The cohort is made of exactly these patients: draw each one again and compare.
        for part, examples in hospital.parts.items():
            drawn = [draw_mri_patient(p, image_size=48, seed=3) for p in patients if p.part == part]
            assert torch.equal(
                torch.from_numpy(np.concatenate([images for images, _ in drawn])), examples.images
            )
            assert torch.equal(
                torch.from_numpy(np.concatenate([masks for _, masks in drawn])), examples.targets
            )


@pytest.mark.parametrize("image_size", [32, 33, 128])
def test_shapes_and_types(image_size: int) -> None:
    cohort = synthetic_mri(hospitals=2, slices=24, image_size=image_size).check()
    for hospital in cohort.hospitals:
        for examples in hospital.parts.values():
            assert (
                examples.images.shape == examples.targets.shape == (len(examples), 1, image_size, image_size)
            )
            assert examples.images.dtype == examples.targets.dtype == torch.uint8
            assert int(examples.targets.max()) == 1
            assert int(examples.images.max()) > 200
            assert float(examples.images.float().std()) > 25


def test_anatomy_is_the_same_at_every_image_size() -> None:
    patient = mri_patients(0, train=20, seed=0)[0]
    small, large = (draw_mri_patient(patient, image_size=size, seed=0)[1] for size in (64, 128))
    assert dice(torch.from_numpy(small), torch.from_numpy(large[:, :, ::2, ::2])) > 0.9


def test_masks_are_single_plausible_lumps(cohort: Cohort) -> None:
    masks = together(cohort, "train", "targets").float()
    share = masks.mean((1, 2, 3))
    assert float(share.min()) > 0.005
    assert float(share.max()) < 0.25
    for mask in masks:
        # Grow from one pixel inside the mask; what is reached is its connected piece.
        reached = torch.zeros_like(mask)
        reached.view(-1)[int(mask.flatten().argmax())] = 1
        for _ in range(2 * mask.shape[-1]):
            reached = torch.nn.functional.max_pool2d(reached[None], 3, 1, 1)[0] * mask
        assert float(reached.sum() / mask.sum()) > 0.95


def test_gland_is_larger_in_the_middle() -> None:
    patient = next(p for p in mri_patients(5, train=60, seed=0) if p.slices >= 7)
    area = draw_mri_patient(patient, image_size=64, seed=0)[1].sum((1, 2, 3))
    assert area[len(area) // 2] > area[0]
    assert area[len(area) // 2] > area[-1]


def test_sites_differ(cohort: Cohort) -> None:
    brightness = [float(hospital.train.images.float().mean()) for hospital in cohort.hospitals]
    assert max(brightness) - min(brightness) > 15
    # Differences of neighbouring pixels, which noise and blur of the scanner set.
    rough = [one.train.images[:, 0].float().diff(dim=1).abs().mean((1, 2)) for one in cohort.hospitals]
    assert stats.kruskal(*(values.tolist() for values in rough)).pvalue < 1e-4


def test_trivial_baselines_fail(cohort: Cohort) -> None:
    images, masks = together(cohort, "train", "images"), together(cohort, "train", "targets")
    line = (torch.arange(48) + 0.5) / 24 - 1
    ellipses = [
        ((line[None] / a) ** 2 + (line[:, None] / b) ** 2 < 1)[None, None]
        for a in (0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
        for b in (0.2, 0.25, 0.3, 0.4)
    ]
    assert max(dice(guess, masks) for guess in ellipses) < 0.55
    bands = [(low, high) for low in range(0, 256, 32) for high in range(low + 32, 288, 32)]
    assert max(dice((images >= low) & (images < high), masks) for low, high in bands) < 0.4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hospitals": 0}, "hospitals is 0; give 1 to 6"),
        ({"hospitals": 7}, "hospitals is 7; give 1 to 6"),
        ({"image_size": 31}, "image_size is 31; give 32 to 256"),
        ({"image_size": 257}, "image_size is 257; give 32 to 256"),
        ({"slices": 3}, "slices is 3.*at least 12"),
        ({"slices": -5}, "slices is -5"),
        ({"seed": -1}, "seed is -1; give 0 or more"),
    ],
)
def test_refuses(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        synthetic_mri(**arguments)


@pytest.mark.parametrize(("seed", "patient"), [(101, Patient(0, 14, 2)), (112, Patient(2, 21, 5))])
def test_texture_below_zero_does_not_become_nan(seed: int, patient: Patient) -> None:
    """Of these two patients some pixels are negative before the scanner's contrast takes a power of them."""
    with np.errstate(invalid="raise"):
        images, _ = draw_mri_patient(patient, image_size=160, seed=seed)
    assert images.std() > 10


@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(0, 40))
@settings(deadline=None, max_examples=25)
def test_every_pixel_is_a_number(seed: int, hospital: int, number: int) -> None:
    with np.errstate(invalid="raise"):
        draw_mri_patient(Patient(hospital, number, 2), image_size=32, seed=seed)


def test_a_drawing_with_nan_is_not_turned_into_bytes() -> None:
    with pytest.raises(AssertionError, match="NaN or infinite pixels"):
        to_bytes(np.array([0.5, np.nan], dtype=np.float32))
