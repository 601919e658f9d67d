"""Cohorts: every image in one part, every mistake named, every byte in the fingerprint."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from silodp.cohorts import Cohort, Examples, HospitalData, load_cohort
from silodp.cohorts.kinds import CohortSettings
from silodp.errors import InputError

PARTS = ("train", "validation", "test")


def numbered(count: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Images that carry their own number, with a class that follows from it."""
    numbers = torch.arange(first, first + count)
    return numbers.float().view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous(), numbers % 2


def masked(count: int) -> tuple[Tensor, Tensor]:
    return numbered(count)[0], torch.zeros(count, 1, 4, 4)


def seen(examples: Examples) -> list[int]:
    return examples.images[:, 0, 0, 0].int().tolist()


@pytest.fixture
def classes() -> Cohort:
    return Cohort.from_tensors({"a": numbered(20), "b": numbered(10, 100)})


@pytest.fixture
def masks() -> Cohort:
    return Cohort.from_tensors({"a": masked(20), "b": masked(10)})


def with_part(cohort: Cohort, part: str, **change: Tensor) -> Cohort:
    """The last hospital with one part changed."""
    *others, last = cohort.hospitals
    return replace(cohort, hospitals=(*others, replace(last, **{part: replace(last.parts[part], **change)})))


def refused(cohort: Cohort) -> str:
    with pytest.raises(InputError) as caught:
        cohort.check()
    return str(caught.value)


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
    train=st.floats(0.1, 0.8),
)
def test_every_image_is_in_one_part_with_its_target(sizes: list[int], seed: int, train: float) -> None:
    shares = (train, (1 - train) / 2, (1 - train) / 2)
    members = {f"h{index}": numbered(size, 100 * index) for index, size in enumerate(sizes)}
    cohort = Cohort.from_tensors(members, shares=shares, seed=seed)
    assert [hospital.name for hospital in cohort.hospitals] == list(members)
    for index, (size, hospital) in enumerate(zip(sizes, cohort.hospitals, strict=True)):
        together = [number for part in hospital.parts.values() for number in seen(part)]
        assert sorted(together) == list(range(100 * index, 100 * index + size))
        assert abs(len(hospital.train) - train * size) <= 0.5 + 1e-9
        for part in hospital.parts.values():
            assert part.targets.tolist() == [number % 2 for number in seen(part)]


def test_shares_are_sixty_twenty_twenty(classes: Cohort) -> None:
    assert [[len(h.parts[part]) for part in PARTS] for h in classes.hospitals] == [[12, 4, 4], [6, 2, 2]]


def test_the_seed_alone_divides() -> None:
    def division(seed: int) -> list[int]:
        return seen(Cohort.from_tensors({"a": numbered(30)}, seed=seed).hospitals[0].train)

    first = division(1)
    torch.manual_seed(9)
    assert division(1) == first
    assert sorted(division(2)) != sorted(first)
    assert first != sorted(first)


def test_unequal_images_and_targets_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="north has 5 images but 4 targets"):
        Cohort.from_tensors({"north": (torch.zeros(5, 1, 4, 4), torch.zeros(4))})


def test_a_good_cohort_passes(classes: Cohort, masks: Cohort) -> None:
    assert classes.check() is classes
    assert masks.check() is masks
    as_bytes = {"a": (torch.zeros(10, 3, 4, 4, dtype=torch.uint8), torch.arange(10) % 2)}
    assert Cohort.from_tensors(as_bytes).check()


def test_no_hospital_is_refused() -> None:
    assert "no hospital" in refused(Cohort("empty", ()))


def test_a_shared_name_is_refused(classes: Cohort) -> None:
    twins = replace(classes, hospitals=(classes.hospitals[0], replace(classes.hospitals[1], name="a")))
    assert "two hospitals share a name in ['a', 'a']" in refused(twins)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_without_images_is_refused(classes: Cohort, part: str) -> None:
    empty = with_part(classes, part, images=torch.zeros(0, 1, 4, 4), targets=torch.zeros(0))
    assert f"b, {part}: no images" in refused(empty)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("shape", [(1, 5, 4), (3, 4, 4), (4, 4)])
def test_images_of_another_shape_are_refused(classes: Cohort, part: str, shape: tuple[int, ...]) -> None:
    message = refused(with_part(classes, part, images=torch.zeros(2, *shape), targets=torch.zeros(2)))
    assert f"b, {part}: images of shape {(2, *shape)}, expected (n, 1, 4, 4)" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", PARTS)
def test_an_image_with_a_bad_value_is_refused_by_number(masks: Cohort, part: str, value: float) -> None:
    images = masks.hospitals[-1].parts[part].images.clone()
    images[1, 0, 2, 3] = value
    assert f"b, {part}: image 1 has NaN or infinite values" in refused(with_part(masks, part, images=images))


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_target_is_refused(classes: Cohort, part: str) -> None:
    examples = classes.hospitals[-1].parts[part]
    message = refused(with_part(classes, part, targets=examples.targets[1:]))
    assert f"b, {part}: {len(examples)} images but {len(examples) - 1} targets" in message


def test_masks_of_another_size_are_refused(masks: Cohort) -> None:
    message = refused(with_part(masks, "test", targets=torch.zeros(2, 1, 4, 5)))
    assert "b, test: masks of (4, 5) for images of (4, 4)" in message


def test_targets_that_are_neither_classes_nor_masks_are_refused(masks: Cohort) -> None:
    message = refused(with_part(masks, "test", targets=torch.zeros(2, 4, 4)))
    assert "b, test: targets of shape (2, 4, 4)" in message


@pytest.mark.parametrize("value", [255.0, 0.5, -1.0])
def test_masks_other_than_0_and_1_are_refused(masks: Cohort, value: float) -> None:
    assert "b, train" in refused(with_part(masks, "train", targets=torch.full((6, 1, 4, 4), value)))


@pytest.mark.parametrize("value", [-1, 2])
def test_a_class_that_training_does_not_know_is_refused(classes: Cohort, value: int) -> None:
    assert "b, test" in refused(with_part(classes, "test", targets=torch.tensor([0, value])))


@pytest.mark.parametrize("part", PARTS)
def test_masks_here_and_classes_there_are_refused(masks: Cohort, classes: Cohort, part: str) -> None:
    numbers, pictures = (c.hospitals[-1].parts[part].targets for c in (classes, masks))
    assert f"b, {part}: targets of shape" in refused(with_part(masks, part, targets=numbers))
    assert f"b, {part}: targets of shape" in refused(with_part(classes, part, targets=pictures))


def test_a_cohort_without_any_training_image_is_refused() -> None:
    nothing = Cohort.from_tensors({"a": numbered(10)}, shares=(0.0, 0.5, 0.5))
    assert "a, train: no images" in refused(nothing)


def test_images_without_channels_are_told_what_is_missing() -> None:
    flat = Cohort.from_tensors({"a": (torch.zeros(10, 4, 4), torch.zeros(10, 1, 4, 4))})
    assert "(n, 4, 4)" not in refused(flat)


def test_one_class_in_all_training_images_is_refused() -> None:
    images, _ = numbered(20)
    everyone_ill = Cohort.from_tensors({name: (images, torch.ones(20).long()) for name in "ab"})
    assert "all of class 1" in refused(everyone_ill)


def test_one_class_in_one_hospital_is_fine() -> None:
    images, labels = numbered(20)
    assert Cohort.from_tensors({"a": (images, labels), "b": (images, labels * 0)}).check()


def test_examples_are_picked_together() -> None:
    picked = Examples(*numbered(10))[torch.tensor([7, 2])]
    assert seen(picked) == [7, 2]
    assert picked.targets.tolist() == [1, 0]
    assert len(picked) == 2


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("field", ["images", "targets"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_the_fingerprint_changes_with_any_value(part: str, field: str, dtype: torch.dtype) -> None:
    members = {"a": (torch.zeros(10, 1, 4, 4).to(dtype), torch.zeros(10, 1, 4, 4).to(dtype))}
    cohort = Cohort.from_tensors(members)
    tensor = getattr(cohort.hospitals[0].parts[part], field)
    prints = {cohort.fingerprint()}
    for place in (0, tensor.numel() // 2, tensor.numel() - 1):
        changed = tensor.clone()
        changed.view(-1)[place] = 1
        prints.add(with_part(cohort, part, **{field: changed}).fingerprint())
    assert len(prints) == 4


def test_the_fingerprint_sees_names_order_and_division(classes: Cohort) -> None:
    renamed = replace(classes, hospitals=(classes.hospitals[0], replace(classes.hospitals[1], name="c")))
    turned = replace(classes, hospitals=classes.hospitals[::-1])
    first = classes.hospitals[0]
    swapped = HospitalData(first.name, first.train, first.test, first.validation)
    exchanged = replace(classes, hospitals=(swapped, classes.hospitals[1]))
    prints = {cohort.fingerprint() for cohort in (classes, renamed, turned, exchanged)}
    assert len(prints) == 4


def test_the_fingerprint_is_the_datas_alone(classes: Cohort) -> None:
    again = Cohort.from_tensors({"a": numbered(20), "b": numbered(10, 100)}, name="another")
    assert again.fingerprint() == classes.fingerprint()


def test_custom_data_cannot_be_loaded_by_name() -> None:
    with pytest.raises(InputError, match=r"cohort\.kind = custom.*silodp\.train"):
        load_cohort(CohortSettings.of(kind="custom"))


def test_classes_with_a_gap_are_refused() -> None:
    images, _ = numbered(20)
    gap = Cohort.from_tensors({name: (images, torch.arange(20) % 2 + 1) for name in "ab"})
    assert "training classes [1, 2]; number them 0, 1, 2" in refused(gap)


def test_arrays_are_taken_like_tensors() -> None:
    images, targets = numbered(20)
    arrays = Cohort.from_tensors({"a": (images.numpy(), targets.numpy())})
    assert arrays.fingerprint() == Cohort.from_tensors({"a": (images, targets)}).fingerprint()


def test_a_name_that_no_file_can_hold_is_refused() -> None:
    """Half of a surrogate pair has no bytes in UTF-8: a traceback when the first seed is drawn for it."""
    images = torch.rand(10, 1, 16, 16)
    cohort = Cohort.from_tensors({"\ud800": (images, (images > 0.5).float())})
    with pytest.raises(
        InputError, match=r"a hospital is called .*ud800.*, which is not valid text; rename it"
    ):
        cohort.check()
