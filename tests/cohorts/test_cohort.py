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


CLASSES = Cohort.from_tensors({"a": numbered(20), "b": numbered(10, 100)})
MASKS = Cohort.from_tensors({"a": masked(20), "b": masked(10)})


def with_part(cohort: Cohort, part: str, **change: Tensor) -> Cohort:
    """The last hospital with one part changed."""
    *others, last = cohort.hospitals
    return replace(cohort, hospitals=(*others, replace(last, **{part: replace(last.parts[part], **change)})))


def renamed(name: str) -> Cohort:
    first, second = CLASSES.hospitals
    return replace(CLASSES, hospitals=(first, replace(second, name=name)))


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
        # Of few images some move, so that no part is empty.
        assert abs(len(hospital.train) - train * size) <= (0.5 if size >= 20 else 2) + 1e-9
        assert size < 3 or all(len(part) for part in hospital.parts.values())
        for part in hospital.parts.values():
            assert part.targets.tolist() == [number % 2 for number in seen(part)]


def test_shares_are_sixty_twenty_twenty() -> None:
    assert [[len(h.parts[part]) for part in PARTS] for h in CLASSES.hospitals] == [[12, 4, 4], [6, 2, 2]]


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


def test_a_good_cohort_passes() -> None:
    assert CLASSES.check() is CLASSES
    assert MASKS.check() is MASKS
    as_bytes = {"a": (torch.zeros(10, 3, 4, 4, dtype=torch.uint8), torch.arange(10) % 2)}
    assert Cohort.from_tensors(as_bytes).check()


def of_class(labels: Tensor) -> Cohort:
    return Cohort.from_tensors({name: (numbered(20)[0], labels) for name in "ab"})


def with_pixel(part: str, value: float) -> Cohort:
    images = MASKS.hospitals[-1].parts[part].images.clone()
    images[1, 0, 2, 3] = value
    return with_part(MASKS, part, images=images)


def targets_of(cohort: Cohort, part: str) -> Tensor:
    return cohort.hospitals[-1].parts[part].targets


FLAT = Cohort.from_tensors({"a": (torch.zeros(10, 4, 4), torch.zeros(10, 1, 4, 4))})
REFUSED = [
    (Cohort("empty", ()), "no hospital"),
    (renamed("a"), "two hospitals share a name in ['a', 'a']"),
    # Half of a surrogate pair has no bytes in UTF-8: a traceback when the first seed is drawn for it.
    (renamed("\ud800"), r"a hospital is called '\ud800', which is not valid text; rename it"),
    (Cohort.from_tensors({"a": numbered(10)}, shares=(0.0, 0.5, 0.5)), "a, train: no images"),
    (FLAT, "images of shape (6, 4, 4); give (n, channels, height, width)"),
    (of_class(torch.ones(20).long()), "all of class 1"),
    (of_class(torch.arange(20) % 2 + 1), "training classes [1, 2]; number them 0, 1, 2"),
    (
        with_part(MASKS, "test", targets=torch.zeros(2, 1, 4, 5)),
        "b, test: masks of (4, 5) for images of (4, 4)",
    ),
    (with_part(MASKS, "test", targets=torch.zeros(2, 4, 4)), "b, test: targets of shape (2, 4, 4)"),
    *(
        (
            with_part(MASKS, "train", targets=torch.full((6, 1, 4, 4), value)),
            "b, train: a mask has values other",
        )
        for value in (255.0, 0.5, -1.0)
    ),
    *(
        (with_part(CLASSES, "test", targets=torch.tensor([0, value])), f"b, test: classes [{min(0, value)}, ")
        for value in (-1, 2)
    ),
]
for part in PARTS:
    count = len(targets_of(CLASSES, part))
    nothing = with_part(CLASSES, part, images=torch.zeros(0, 1, 4, 4), targets=torch.zeros(0))
    fewer = with_part(CLASSES, part, targets=targets_of(CLASSES, part)[1:])
    REFUSED += [
        (nothing, f"b, {part}: no images"),
        (fewer, f"b, {part}: {count} images but {count - 1} targets"),
        (with_part(MASKS, part, targets=targets_of(CLASSES, part)), f"b, {part}: targets of shape"),
        (with_part(CLASSES, part, targets=targets_of(MASKS, part)), f"b, {part}: targets of shape"),
    ]
    REFUSED += [
        (with_pixel(part, value), f"b, {part}: image 1 has NaN or infinite values")
        for value in (float("nan"), float("inf"), float("-inf"))
    ]
    REFUSED += [
        (
            with_part(CLASSES, part, images=torch.zeros(2, *shape), targets=torch.zeros(2)),
            f"b, {part}: images of shape {(2, *shape)}, expected (n, 1, 4, 4)",
        )
        for shape in ((1, 5, 4), (3, 4, 4), (4, 4))
    ]


@pytest.mark.parametrize(("cohort", "message"), REFUSED, ids=[ascii(message) for _, message in REFUSED])
def test_what_would_spoil_training_is_refused(cohort: Cohort, message: str) -> None:
    with pytest.raises(InputError) as caught:
        cohort.check()
    assert message in str(caught.value)


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


def test_the_fingerprint_sees_names_order_and_division() -> None:
    turned = replace(CLASSES, hospitals=CLASSES.hospitals[::-1])
    first = CLASSES.hospitals[0]
    swapped = HospitalData(first.name, first.train, first.test, first.validation)
    exchanged = replace(CLASSES, hospitals=(swapped, CLASSES.hospitals[1]))
    prints = {cohort.fingerprint() for cohort in (CLASSES, renamed("c"), turned, exchanged)}
    assert len(prints) == 4


def test_the_fingerprint_is_the_datas_alone() -> None:
    again = Cohort.from_tensors({"a": numbered(20), "b": numbered(10, 100)}, name="another")
    assert again.fingerprint() == CLASSES.fingerprint()


def test_custom_data_cannot_be_loaded_by_name() -> None:
    with pytest.raises(InputError, match=r"cohort\.kind = custom.*silodp\.train"):
        load_cohort(CohortSettings.of(kind="custom"))


def test_arrays_are_taken_like_tensors() -> None:
    images, targets = numbered(20)
    arrays = Cohort.from_tensors({"a": (images.numpy(), targets.numpy())})
    assert arrays.fingerprint() == Cohort.from_tensors({"a": (images, targets)}).fingerprint()


@pytest.mark.parametrize("people", [None, [0, 0, 0, 0, 0, 1, 1, 2], [0, 1, 2, 2, 2, 2, 2, 2]])
@pytest.mark.parametrize("seed", range(4))
def test_no_part_of_a_small_hospital_is_empty_where_it_has_three_patients(
    people: list[int] | None, seed: int
) -> None:
    count = 3 if people is None else len(people)
    images, labels = torch.zeros(count, 1, 16, 16), torch.arange(count)
    small = (images, labels) if people is None else (images, labels, people)
    (hospital,) = Cohort.from_tensors({"small": small}, seed=seed).hospitals
    assert all(len(part) for part in hospital.parts.values())
    assert sorted(n for part in hospital.parts.values() for n in part.targets.tolist()) == [*range(count)]
    if people is not None:
        own = [{people[n] for n in part.targets.tolist()} for part in hospital.parts.values()]
        assert sum(map(len, own)) == 3


def test_printing_a_cohort_shows_no_pixel() -> None:
    assert repr(MASKS.hospitals[0].train) == "Examples(images (12, 1, 4, 4), targets (12, 1, 4, 4))"
    assert "tensor" not in repr(MASKS)
