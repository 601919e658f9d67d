"""Classification: against the rank formula, scipy, and tables filled in by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu
from torch import Tensor

from silodp.tasks import task_named
from silodp.tasks.classification import CLASSIFICATION


def binary(scores: list[float]) -> Tensor:
    return torch.tensor([[0.0, score] for score in scores])


def picks(classes: list[int], count: int) -> Tensor:
    """Logits whose largest is the given class."""
    return torch.nn.functional.one_hot(torch.tensor(classes), count) * 3.0


def test_it_is_found_by_name() -> None:
    assert task_named("classification") is CLASSIFICATION
    assert CLASSIFICATION.headline == "auc"
    assert CLASSIFICATION.quick_metrics(binary([1, -1]), torch.tensor([1, 0]))["accuracy"] == 1


@pytest.mark.parametrize(("labels", "outputs"), [([0, 1, 1], 2), ([0, 0], 2), ([0, 4, 1], 5)])
def test_outputs_cover_the_classes(labels: list[int], outputs: int) -> None:
    assert CLASSIFICATION.outputs(torch.tensor(labels)) == outputs


@settings(max_examples=50, deadline=None)
@given(
    negative=st.lists(st.integers(-6, 6), min_size=1, max_size=25),
    positive=st.lists(st.integers(-6, 6), min_size=1, max_size=25),
    seed=st.integers(0, 1000),
)
def test_auc_is_the_rank_statistic(negative: list[int], positive: list[int], seed: int) -> None:
    order = torch.randperm(len(negative) + len(positive), generator=torch.Generator().manual_seed(seed))
    logits = binary([float(score) for score in negative + positive])[order]
    labels = torch.tensor([0] * len(negative) + [1] * len(positive))[order]
    expected = mannwhitneyu(positive, negative).statistic / (len(positive) * len(negative))
    assert CLASSIFICATION.metrics(logits, labels)["auc"] == pytest.approx(expected, abs=1e-6)


def test_auc_still_ranks_scores_of_a_very_sure_network() -> None:
    assert CLASSIFICATION.metrics(binary([20, 25, 30, 35]), torch.tensor([0, 0, 1, 1]))["auc"] == 1


BY_HAND: dict[str, tuple[list[int], list[int], int, dict[str, float]]] = {
    # 3 found, 1 missed, 2 false alarms, 4 rightly dismissed.
    "two classes": ([1] * 4 + [0] * 6, [1, 1, 1, 0, 1, 1, 0, 0, 0, 0], 2, {
        "auc": (3 * 4 + 0.5 * (3 * 2 + 1 * 4)) / 24, "accuracy": 7 / 10, "sensitivity": 3 / 4,
        "specificity": 4 / 6, "f1": 6 / 9,
    }),
    "all of class 0": ([0] * 4, [1, 0, 1, 1], 2, {"auc": math.nan, "accuracy": 1 / 4, "specificity": 1 / 4}),
    "all of class 1": ([1] * 4, [1, 0, 1, 1], 2, {"auc": math.nan, "accuracy": 3 / 4, "sensitivity": 3 / 4}),
    # Truth down, prediction across: [[2, 1, 0], [0, 3, 0], [1, 0, 1]].
    "three classes": ([0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 0, 2], 3, {
        "accuracy": 6 / 8, "sensitivity": (2 / 3 + 3 / 3 + 1 / 2) / 3,
        "specificity": (4 / 5 + 4 / 5 + 6 / 6) / 3, "f1": (4 / 6 + 6 / 7 + 2 / 3) / 3,
    }),
    # [[2, 1], [1, 2]] of classes 0 and 1; classes 2 and 3 have no false positive, and count for nothing else.
    "absent, never predicted": ([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 0], 4, {
        "accuracy": 4 / 6, "sensitivity": 2 / 3, "specificity": (2 / 3 + 2 / 3 + 1 + 1) / 4, "f1": 2 / 3,
    }),
    "absent, predicted": ([0, 0, 1, 1], [0, 2, 1, 1], 3, {
        "sensitivity": (1 / 2 + 1) / 2, "specificity": (1 + 1 + 3 / 4) / 3, "f1": (2 / 3 + 1 + 0) / 3,
    }),
    "present, never predicted": ([0, 1, 2, 2], [0, 1, 0, 0], 3, {
        "sensitivity": (1 + 1 + 0) / 3, "specificity": (1 / 3 + 1 + 1) / 3, "f1": (2 / 4 + 1 + 0) / 3,
    }),
    "only one of many": ([2, 2, 2, 2], [2, 2, 0, 2], 3, {
        "auc": math.nan, "accuracy": 3 / 4, "sensitivity": 3 / 4, "specificity": (3 / 4 + 1) / 2,
        "f1": (6 / 7 + 0) / 2,
    }),
    "a single image": ([1], [1], 2, {"auc": math.nan, "accuracy": 1}),
}  # fmt: skip
"""True classes, predicted classes, their number, and metrics."""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", BY_HAND)
def test_metrics_by_hand(case: str) -> None:
    labels, predicted, classes, expected = BY_HAND[case]
    found = CLASSIFICATION.metrics(picks(predicted, classes), torch.tensor(labels))
    assert set(found) == {"auc", "accuracy", "sensitivity", "specificity", "f1"}
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)


@pytest.mark.filterwarnings("error")
@settings(max_examples=50, deadline=None)
@given(
    classes=st.integers(3, 6),
    seed=st.integers(0, 1000),
    answers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20),
)
def test_macro_auc_is_the_mean_rank_statistic_of_the_classes_that_occur(
    classes: int, seed: int, answers: list[tuple[int, int]]
) -> None:
    # Six different answers of the network, so that many images tie.
    known = torch.randn(6, classes, generator=torch.Generator().manual_seed(seed))
    logits = known[[answer for answer, _ in answers]]
    labels = [label % classes for _, label in answers]
    present = sorted(set(labels))
    seen = CLASSIFICATION.metrics(logits, torch.tensor(labels))["auc"]
    if len(present) == 1:
        assert math.isnan(seen)
        return
    probable = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for row in logits.tolist()]
    areas = []
    for k in present:
        ours, others = (
            [row[k] for row, label in zip(probable, labels, strict=True) if (label == k) == inside]
            for inside in (True, False)
        )
        areas.append(mannwhitneyu(ours, others, method="exact").statistic / (len(ours) * len(others)))
    assert seen == pytest.approx(sum(areas) / len(areas), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(classes=st.integers(3, 6), seed=st.integers(0, 1000), images=st.integers(1, 20))
def test_only_auc_can_be_undefined_with_many_classes(classes: int, seed: int, images: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=generator)
    labels = torch.randint(0, classes, (images,), generator=generator)
    seen = CLASSIFICATION.metrics(logits, labels)
    assert math.isnan(seen.pop("auc")) == (len(labels.unique()) == 1)
    assert all(0 <= value <= 1 for value in seen.values())


@pytest.mark.parametrize("classes", [2, 3])
def test_a_network_that_answers_nan_has_no_auc_even_where_images_are_sorted(classes: int) -> None:
    logits = torch.full((6, classes), math.nan)
    assert math.isnan(CLASSIFICATION.metrics(logits, torch.arange(6) * classes // 6)["auc"])


def test_the_loss_is_cross_entropy_and_each_images_own_is_known() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    expected = [-math.log(math.exp(1) / (math.exp(2) + 1 + math.exp(1))), math.log(3)]
    for labels in (torch.tensor([2, 0]), torch.tensor([2, 0], dtype=torch.uint8)):
        assert CLASSIFICATION.image_losses(logits, labels).tolist() == pytest.approx(expected)
        assert float(CLASSIFICATION.loss(logits, labels)) == pytest.approx(sum(expected) / 2)
