"""Classification: against the rank formula, scipy, and tables filled in by hand."""

import math
import warnings

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


@pytest.fixture
def _no_warnings() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_it_is_found_by_name() -> None:
    assert task_named("classification") is CLASSIFICATION
    assert CLASSIFICATION.headline == "auc"


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


def test_a_table_by_hand() -> None:
    # 3 found, 1 missed, 2 false alarms, 4 rightly dismissed.
    labels = torch.tensor([1] * 4 + [0] * 6)
    seen = CLASSIFICATION.metrics(picks([1, 1, 1, 0, 1, 1, 0, 0, 0, 0], 2), labels)
    assert seen["accuracy"] == pytest.approx(7 / 10)
    assert seen["sensitivity"] == pytest.approx(3 / 4)
    assert seen["specificity"] == pytest.approx(4 / 6)
    assert seen["f1"] == pytest.approx(6 / 9)
    assert seen["auc"] == pytest.approx((3 * 4 + 0.5 * (3 * 2 + 1 * 4)) / 24)
    assert set(seen) == {"auc", "accuracy", "sensitivity", "specificity", "f1"}
    assert CLASSIFICATION.quick_metrics(binary([1, -1]), torch.tensor([1, 0]))["accuracy"] == 1


@pytest.mark.usefixtures("_no_warnings")
@pytest.mark.parametrize(("label", "defined"), [(0, "specificity"), (1, "sensitivity")])
def test_one_class_only_has_no_auc(label: int, defined: str) -> None:
    seen = CLASSIFICATION.metrics(binary([1, -1, 2, 3]), torch.full((4,), label))
    assert math.isnan(seen["auc"])
    assert seen["accuracy"] == pytest.approx(3 / 4 if label else 1 / 4)
    assert seen[defined] == pytest.approx(seen["accuracy"])


@pytest.mark.usefixtures("_no_warnings")
def test_a_single_image_is_enough() -> None:
    seen = CLASSIFICATION.metrics(binary([1]), torch.tensor([1]))
    assert seen["accuracy"] == 1
    assert math.isnan(seen["auc"])


@pytest.mark.usefixtures("_no_warnings")
def test_three_classes_by_hand() -> None:
    # Truth down, guess across: [[2, 1, 0], [0, 3, 0], [1, 0, 1]].
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    seen = CLASSIFICATION.metrics(picks([0, 0, 1, 1, 1, 1, 0, 2], 3), labels)
    assert seen["accuracy"] == pytest.approx(6 / 8)
    assert seen["sensitivity"] == pytest.approx((2 / 3 + 3 / 3 + 1 / 2) / 3)
    assert seen["specificity"] == pytest.approx((4 / 5 + 4 / 5 + 6 / 6) / 3)
    assert seen["f1"] == pytest.approx((4 / 6 + 6 / 7 + 2 / 3) / 3)


@pytest.mark.usefixtures("_no_warnings")
def test_auc_of_three_classes_is_the_mean_of_one_against_the_rest() -> None:
    logits = torch.randn(60, 3, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(60) % 3
    scores = logits.softmax(1)
    expected = sum(
        mannwhitneyu(scores[labels == k, k], scores[labels != k, k]).statistic / (20 * 40) for k in range(3)
    )
    assert CLASSIFICATION.metrics(logits, labels)["auc"] == pytest.approx(expected / 3, abs=1e-6)


@pytest.mark.usefixtures("_no_warnings")
@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [2, 2, 2, 2]])
def test_a_missing_third_class_is_no_reason_to_warn(labels: list[int]) -> None:
    CLASSIFICATION.metrics(picks([0, 1, 2, 0], 3), torch.tensor(labels))


def test_the_loss_is_cross_entropy() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    expected = (-math.log(math.exp(1) / (math.exp(2) + 1 + math.exp(1))) + math.log(3)) / 2
    assert float(CLASSIFICATION.loss(logits, torch.tensor([2, 0]))) == pytest.approx(expected)
    assert float(CLASSIFICATION.loss(logits, torch.tensor([2, 0], dtype=torch.uint8))) == pytest.approx(
        expected
    )
