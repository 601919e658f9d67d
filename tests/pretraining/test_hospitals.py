"""Generated hospitals: as many and as large as asked, in one world, and the same for the same seed."""

import pytest
import torch

from silodp.pretraining import hospitals
from silodp.pretraining.hospitals import generated_hospitals
from silodp.pretraining.kinds import generated


@pytest.fixture(autouse=True)
def _few_for_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hospitals, "FOR_TEST", 8)


@pytest.mark.parametrize("kind", ["shapes", "lesions"])
def test_hospitals_are_as_many_and_as_large_as_asked(kind: str) -> None:
    cohort = generated_hospitals(kind, [20, 9], 32, 3, seed=1)
    assert [len(hospital.train) for hospital in cohort.hospitals] == [20, 9]
    assert cohort.hospitals[0].train.images.shape[1:] == (3, 32, 32)
    assert cohort.hospitals[0].train.images.dtype == torch.uint8
    checked = cohort.check(2 if kind == "lesions" else None)
    assert checked.knows_patients
    again, other = (generated_hospitals(kind, [20, 9], 32, 3, seed=seed) for seed in (1, 2))
    assert again.fingerprint() == cohort.fingerprint()
    assert other.fingerprint() != cohort.fingerprint()


def test_annotators_of_one_world_have_one_habit() -> None:
    """Outlines are drawn inside or outside of the shape, by all alike: what a federation can learn."""
    areas = {}
    for seed in range(6):
        cohort = generated_hospitals("shapes", [32, 32], 48, 1, seed=seed)
        areas[seed] = [float(one.train.targets.float().mean()) for one in cohort.hospitals]
    between = torch.tensor([sum(pair) for pair in areas.values()]).std()
    within = torch.tensor([pair[0] - pair[1] for pair in areas.values()]).abs().mean()
    assert between > within


def test_a_hospital_has_few_patients_of_many_slices() -> None:
    """As real ones have: what a hospital learns of its own few patients alone must show in a rehearsal."""
    train = generated_hospitals("shapes", [60], 32, 1, seed=0).hospitals[0].train
    assert train.patients is not None
    assert torch.bincount(train.patients).tolist() == [24, 24, 12]


def test_a_slice_counts_once_its_find_is_large_enough_for_this_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def labels(overlooked: float) -> torch.Tensor:
        monkeypatch.setattr(hospitals, "OVERLOOKED", overlooked)
        cohort = generated_hospitals("lesions", [72, 72], 48, 1, seed=3)
        return torch.cat([one.train.targets for one in cohort.hospitals])

    every, some = labels(0.0), labels(0.9)
    assert 0 < int(some.sum()) < int(every.sum())
    assert bool((some <= every).all())  # annotators leave finds out, and make none up


def test_the_smallest_finds_are_overlooked_first() -> None:
    masks = torch.zeros(5, 1, 4, 4, dtype=torch.uint8)
    for number, size in enumerate((3, 0, 1, 8, 5)):
        masks[number].view(-1)[:size] = 1
    called = hospitals._overlook(masks, 0.5).amax((1, 2, 3))
    assert called.tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(hospitals._overlook(masks, 0.0), masks)
    assert not hospitals._overlook(masks[1:2], 0.5).any()


def test_a_world_shows_greys_that_its_start_has_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    met = generated("head").style.contrast
    assert met < hospitals.CONTRAST
    beyond = generated_hospitals("head", [12], 32, 1, seed=4).hospitals[0].train
    monkeypatch.setattr(hospitals, "CONTRAST", met)
    usual = generated_hospitals("head", [12], 32, 1, seed=4).hospitals[0].train
    assert torch.equal(beyond.targets, usual.targets)
    assert not torch.equal(beyond.images, usual.images)
