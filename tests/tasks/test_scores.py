"""Intervals: against repeated images, and against the law of a mean."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from silodp.runs.wording import describe_test, show_interval
from silodp.tasks import TASKS
from silodp.tasks.scores import RESAMPLES, mean_intervals, score

SEGMENTATION, CLASSIFICATION = TASKS["segmentation"], TASKS["classification"]


@settings(max_examples=40, deadline=None)
@given(
    task=st.sampled_from(
        [("segmentation", 1), ("segmentation", 2), ("classification", 2), ("classification", 3)]
    ),
    times=st.lists(st.integers(0, 3), min_size=2, max_size=9).filter(any),
    seed=st.integers(0, 999),
)
def test_a_weight_is_so_many_copies(task: tuple[str, int], times: list[int], seed: int) -> None:
    (name, outputs), count, rng = task, len(times), np.random.default_rng(seed)
    if name == "segmentation":
        logits = torch.from_numpy(rng.normal(size=(count, outputs, 6, 6)))
        targets = torch.from_numpy(rng.random((count, outputs, 6, 6)) < 0.3)
    else:
        logits = torch.from_numpy(rng.integers(-2, 3, (count, outputs)).astype(float))  # with ties
        targets = torch.from_numpy(rng.integers(0, outputs, count))
    weights = torch.tensor([[1.0] * count, times], dtype=torch.float64)
    found = TASKS[name].measure(logits, targets)(weights)
    copies = torch.repeat_interleave(torch.arange(count), torch.tensor(times))
    for row, chosen in enumerate((torch.arange(count), copies)):
        expected = TASKS[name].metrics(logits[chosen], targets[chosen])
        assert {key: float(value[row]) for key, value in found.items()} == pytest.approx(
            expected, nan_ok=True
        )


@pytest.mark.parametrize("each", [1, 5])
def test_the_spread_is_that_of_a_mean_over_people(each: int) -> None:
    """Each person's images are right or wrong together: the standard deviation is √(p(1 − p)/people)."""
    people, share = 200, 0.7
    right = torch.arange(people) < people * share
    whose = torch.arange(people).repeat_interleave(each)
    labels = torch.arange(people * each) % 2
    logits = torch.nn.functional.one_hot(torch.where(right[whose], labels, 1 - labels), 2).double()
    found = score(CLASSIFICATION, logits, labels, whose, seed=1)
    assert found.values["accuracy"] == pytest.approx(share)
    assert (found.images, found.patients) == (people * each, people)
    expected = math.sqrt(share * (1 - share) / people)
    drawn = found.resampled["accuracy"]
    assert len(drawn) == RESAMPLES
    assert float(drawn.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * RESAMPLES))
    low, high = found.intervals["accuracy"]
    assert high - low == pytest.approx(2 * 1.96 * expected, rel=0.2)


def test_hospitals_are_drawn_each_for_itself() -> None:
    labels = torch.arange(400) % 2
    right = torch.arange(400) < 200
    logits = torch.nn.functional.one_hot(torch.where(right, labels, 1 - labels), 2).double()
    one, other = (score(CLASSIFICATION, logits, labels, None, seed) for seed in (1, 2))
    assert one.patients is None
    assert not torch.equal(one.resampled["accuracy"], other.resampled["accuracy"])
    assert torch.equal(
        one.resampled["auc"], score(CLASSIFICATION, logits, labels, None, seed=1).resampled["auc"]
    )
    alone, together = one.intervals["accuracy"], mean_intervals([one, other])["accuracy"]
    ratio = (together[1] - together[0]) / (alone[1] - alone[0])
    assert ratio == pytest.approx(1 / math.sqrt(2), rel=0.25)


def test_one_person_has_no_interval_nor_has_a_mean_with_such_a_hospital() -> None:
    """Drawing one person again and again gives a width of nothing, as if all were known."""
    labels, logits = torch.arange(40) % 2, torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    many = score(CLASSIFICATION, logits, labels, None, seed=1)
    one = score(CLASSIFICATION, logits, labels, torch.zeros(40, dtype=torch.int64), seed=1)
    assert all(map(math.isnan, one.intervals["accuracy"]))
    assert all(map(math.isnan, mean_intervals([many, one])["accuracy"]))
    assert not any(map(math.isnan, mean_intervals([many, many])["accuracy"]))


def test_more_images_than_fit_at_once_are_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(40) % 2
    logits = torch.randn(40, 2, generator=torch.Generator().manual_seed(3))
    whole = score(CLASSIFICATION, logits, labels, None, seed=4)
    monkeypatch.setattr("silodp.tasks.scores._AT_ONCE", 40 * 100)
    assert torch.equal(
        score(CLASSIFICATION, logits, labels, None, seed=4).resampled["auc"], whole.resampled["auc"]
    )


def outcome(**changes: Any) -> Any:
    return {
        "round": 3, "mean": {"dice": 0.8}, "hospitals": {"a": {"dice": 0.8}}, "batch": "any", "other": None,
        "intervals": {"mean": {"dice": [0.71, 0.88]}, "hospitals": {"a": {"dice": [0.71, 0.88]}}},
        "tried": {"a": {"images": 90, "patients": 60}}, **changes,
    }  # fmt: skip


def test_in_words() -> None:
    assert describe_test(outcome(), "dice") == [
        "dice 0.800, 95 % interval 0.710–0.880; 90 test images of 60 patients, each judged by itself"
    ]
    few = describe_test(outcome(tried={"a": {"images": 90, "patients": 49}}), "dice")
    assert few[1].startswith("only 49 test patients")
    few = describe_test(
        outcome(tried={"a": {"images": 90, "patients": 3}, "b": {"images": 5, "patients": None}}), "dice"
    )
    assert few == ["dice 0.800, 95 % interval 0.710–0.880; 95 test images, each judged by itself"]
    one = {"a": {"images": 90, "patients": 60}, "b": {"images": 9, "patients": 1}}
    lone = describe_test(outcome(tried=one, intervals={"mean": {"dice": [None, None]}}), "dice")
    assert lone[0] == "dice 0.800, 99 test images of 61 patients, each judged by itself"
    assert lone[1].startswith("no interval: a hospital with one test patient")
    part = outcome(hospitals={"a": {"dice": 0.8}, "b": {"dice": None}, "c": {"dice": None}})
    assert describe_test(part, "dice")[1] == (
        "dice is the mean of 1 of 3 hospitals: on the test images of b and c it is not defined"
    )
    other = {"batch": "hospital", "mean": {"dice": 0.9}, "hospitals": {"a": {"dice": 0.9}}}
    both = describe_test(outcome(batch="image", other=other), "dice")
    assert both[0].endswith("one image at a time")
    assert both[1].startswith("in batches of a hospital the same model has dice 0.900")
    assert show_interval([None, None]) == show_interval(None) == ""
