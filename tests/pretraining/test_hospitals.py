"""Generated hospitals: as many and as large as asked, in one world, and the same for the same seed."""

import pytest
import torch

from silodp.pretraining.hospitals import generated_hospitals


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
