"""The synthetic cohorts: repeatable, divided by patient, unlike from site to site, not trivially solved."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, stats
from torch import Tensor

from silodp.cohorts.cohort import Cohort
from silodp.cohorts.kinds import CohortSettings, SyntheticCohort
from silodp.cohorts.synthetic import Patient, draw_cohort, to_bytes
from silodp.cohorts.synthetic_ct import SyntheticCt
from silodp.cohorts.synthetic_mri import SITES, SyntheticMri, draw_mri_patient
from silodp.errors import InputError

KINDS = ("synthetic-mri", "synthetic-ct")
each_kind = pytest.mark.parametrize("kind", KINDS)


def asked(kind: str, **given: Any) -> SyntheticCohort:
    found = CohortSettings.of(kind=kind, **{"image_size": 32} | given)
    assert isinstance(found, SyntheticCohort)
    return found


def drawn(kind: str, **given: Any) -> Cohort:
    return draw_cohort(asked(kind, **given)).check()


@pytest.fixture(scope="module")
def mri() -> Cohort:
    return drawn("synthetic-mri", slices=180, image_size=48, seed=3)


@pytest.fixture(scope="module")
def ct() -> Cohort:
    return drawn("synthetic-ct", hospitals=6, slices=360, channels=3)


def together(cohort: Cohort, part: str, field: str) -> Tensor:
    return torch.cat([getattr(hospital.parts[part], field) for hospital in cohort.hospitals])


def dice(guess: Tensor, truth: Tensor) -> float:
    guess, truth = guess.expand_as(truth).flatten(1).float(), truth.flatten(1).float()
    return float((2 * (guess * truth).sum(1) / (guess.sum(1) + truth.sum(1))).mean())


@each_kind
def test_same_seed_same_cohort(kind: str) -> None:
    first, again, other = (drawn(kind, hospitals=2, slices=30, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(("kind", "more"), [("synthetic-mri", 0), ("synthetic-ct", 36)])
def test_a_hospital_does_not_depend_on_the_others(kind: str, more: int) -> None:
    """More CT hospitals share the slices, so they are given as many more."""
    few, many = drawn(kind, hospitals=2, slices=24), drawn(kind, hospitals=5, slices=24 + more)
    for alone, among in zip(few.hospitals, many.hospitals[:2], strict=True):
        for part, examples in alone.parts.items():
            assert torch.equal(examples.images, among.parts[part].images)
            assert torch.equal(examples.targets, among.parts[part].targets)


@each_kind
def test_no_patient_in_two_parts(kind: str) -> None:
    settings = asked(kind, hospitals=3, slices=90, seed=3)
    for number, hospital in enumerate(draw_cohort(settings).hospitals):
        patients = settings.patients(number, settings.train_sizes()[number])
        assert len({patient.number for patient in patients}) == len(patients)
        # The cohort is made of exactly these patients: draw each one again and compare.
        for part, examples in hospital.parts.items():
            mine = [settings.draw_patient(patient) for patient in patients if patient.part == part]
            images, targets = (torch.from_numpy(np.concatenate(both)) for both in zip(*mine, strict=True))
            assert torch.equal(images, examples.images)
            assert torch.equal(targets, examples.targets)


@pytest.mark.parametrize(
    ("kind", "channels", "image_size"),
    [
        ("synthetic-mri", 1, 32), ("synthetic-mri", 1, 33), ("synthetic-mri", 1, 128),
        ("synthetic-ct", 1, 32), ("synthetic-ct", 3, 33), ("synthetic-ct", 3, 128),
    ],
)  # fmt: skip
def test_shapes_and_types(kind: str, channels: int, image_size: int) -> None:
    more = {"channels": channels} if kind == "synthetic-ct" else {}
    for hospital in drawn(kind, hospitals=2, slices=24, image_size=image_size, **more).hospitals:
        for images, targets in ((each.images, each.targets) for each in hospital.parts.values()):
            assert images.shape == (len(images), channels, image_size, image_size)
            assert images.dtype == torch.uint8
            assert int(images.max()) > 200
            assert float(images.float().std()) > 25
            expected = (
                (images.shape, torch.uint8) if kind == "synthetic-mri" else ((len(images),), torch.int64)
            )
            assert (targets.shape, targets.dtype) == expected
            assert int(targets.max()) == 1


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("synthetic-mri", {"hospitals": 7}, r"cohort\.hospitals = 7 with .*: give 1 to 6"),
        ("synthetic-mri", {"image_size": 31}, r"cohort\.image_size = 31 with .*: give 32 to 256 pixels"),
        ("synthetic-mri", {"image_size": 257}, r"cohort\.image_size = 257 with .*: give 32 to 256 pixels"),
        ("synthetic-mri", {"slices": 3}, r"cohort\.slices = 3: .*at least 12"),
        ("synthetic-ct", {"hospitals": 5, "slices": 9}, r"cohort\.slices = 9 with .* = 5: give at least 10"),
    ],
)
def test_what_cannot_be_drawn_is_refused(kind: str, given: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        drawn(kind, **given)


@pytest.mark.parametrize("slices", [12, 60, 480, 2808])
def test_mri_sizes_follow_the_paper(slices: int) -> None:
    sizes = SyntheticMri(slices=slices).train_sizes()
    assert sum(sizes) == slices
    total = sum(site.weight for site in SITES)
    assert all(abs(size - slices * site.weight / total) <= 1 for size, site in zip(sizes, SITES, strict=True))


def test_mri_parts_are_60_20_20(mri: Cohort) -> None:
    assert len(together(mri, "train", "images")) == 180
    for hospital in mri.hospitals:
        assert len(hospital.validation) == len(hospital.test) == max(1, round(len(hospital.train) / 3))


def test_more_mri_slices_only_add_patients() -> None:
    few, many = (SyntheticMri().patients(0, train) for train in (20, 60))
    assert {patient.number for patient in few} < {patient.number for patient in many}


def test_mri_anatomy_is_the_same_at_every_image_size() -> None:
    patient = SyntheticMri().patients(0, 20)[0]
    small, large = (draw_mri_patient(patient, image_size=size, seed=0)[1] for size in (64, 128))
    assert dice(torch.from_numpy(small), torch.from_numpy(large[:, :, ::2, ::2])) > 0.9


def test_mri_masks_are_single_plausible_lumps(mri: Cohort) -> None:
    masks = together(mri, "train", "targets").numpy()
    share = masks.mean((1, 2, 3))
    assert 0.005 < share.min() <= share.max() < 0.25
    for mask in masks[:, 0]:
        pieces, _ = ndimage.label(mask, np.ones((3, 3)))
        assert np.bincount(pieces[mask > 0]).max() > 0.95 * mask.sum()


def test_an_mri_gland_is_larger_in_the_middle() -> None:
    patient = next(patient for patient in SyntheticMri().patients(5, 60) if patient.slices >= 7)
    area = draw_mri_patient(patient, image_size=64, seed=0)[1].sum((1, 2, 3))
    assert area[len(area) // 2] > max(area[0], area[-1])


def test_mri_sites_differ(mri: Cohort) -> None:
    brightness = [float(hospital.train.images.float().mean()) for hospital in mri.hospitals]
    assert max(brightness) - min(brightness) > 15
    # Differences of neighbouring pixels, which noise and blur of the scanner set.
    rough = [one.train.images[:, 0].float().diff(dim=1).abs().mean((1, 2)) for one in mri.hospitals]
    assert stats.kruskal(*(values.tolist() for values in rough)).pvalue < 1e-4


def test_trivial_segmentations_of_mri_fail(mri: Cohort) -> None:
    images, masks = together(mri, "train", "images"), together(mri, "train", "targets")
    line = (torch.arange(48) + 0.5) / 24 - 1
    ellipses = [
        ((line[None] / a) ** 2 + (line[:, None] / b) ** 2 < 1)[None, None]
        for a in (0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
        for b in (0.2, 0.25, 0.3, 0.4)
    ]
    assert max(dice(guess, masks) for guess in ellipses) < 0.55
    bands = [(low, high) for low in range(0, 256, 32) for high in range(low + 32, 288, 32)]
    assert max(dice((images >= low) & (images < high), masks) for low, high in bands) < 0.4


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


def test_ct_hospitals_are_of_equal_size() -> None:
    cohort = drawn("synthetic-ct", hospitals=4, slices=50)
    assert [len(hospital.train) for hospital in cohort.hospitals] == [13, 13, 12, 12]
    assert all(len(hospital.validation) == len(hospital.test) == 4 for hospital in cohort.hospitals)


def test_only_bleeding_patients_bleed() -> None:
    settings, clean_slices = SyntheticCt(image_size=32), 0
    for patient in settings.patients(0, 90):
        _, labels = settings.draw_patient(patient)
        assert labels.any() == patient.bleeding
        clean_slices += int((labels == 0).sum()) if patient.bleeding else 0
    assert clean_slices > 0


@pytest.mark.parametrize("train", [2, 3, 5, 8, 60])
def test_both_ct_classes_are_everywhere(train: int) -> None:
    for seed in range(4):
        for hospital in drawn("synthetic-ct", hospitals=3, slices=3 * train, seed=seed).hospitals:
            for examples in hospital.parts.values():
                assert examples.targets.unique().tolist() == [0, 1]


def test_ct_classes_are_about_even(ct: Cohort) -> None:
    for hospital in ct.hospitals:
        assert 0.35 < float(hospital.train.targets.float().mean()) < 0.65
    assert 0.4 < float(together(ct, "test", "targets").float().mean()) < 0.6


def test_one_ct_channel_is_the_brain_window() -> None:
    one, three = (drawn("synthetic-ct", hospitals=1, slices=8, channels=channels) for channels in (1, 3))
    assert torch.equal(one.hospitals[0].train.images, three.hospitals[0].train.images[:, :1])


def test_ct_hospitals_differ(ct: Cohort) -> None:
    # Local roughness of the middle of the brain, which noise and kernel set.
    rough = [one.train.images[:, 0, 10:22, 10:22].float().diff(dim=1).abs() for one in ct.hospitals]
    assert stats.kruskal(*(values.mean((1, 2)).tolist() for values in rough)).pvalue < 1e-4


def test_trivial_classifications_of_ct_fail(ct: Cohort) -> None:
    """The area under the ROC curve is the Mann-Whitney statistic as a share of all pairs."""
    parts = ("train", "validation", "test")
    images = torch.cat([together(ct, part, "images") for part in parts]).float()
    ill = torch.cat([together(ct, part, "targets") for part in parts]) == 1
    for channel in range(3):
        for scores, margin in (
            (images[:, channel].mean((1, 2)), 0.1),
            (images[:, channel].amax((1, 2)), 0.15),
        ):
            wins = stats.mannwhitneyu(scores[ill].tolist(), scores[~ill].tolist()).statistic
            assert abs(wins / (int(ill.sum()) * int((~ill).sum())) - 0.5) < margin
