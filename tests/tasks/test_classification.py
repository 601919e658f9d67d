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


BY_HAND: dict[str, tuple[list[int], list[int], int, dict[str, float]]] = {
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


@pytest.mark.usefixtures("_no_warnings")
@pytest.mark.parametrize("case", BY_HAND)
def test_metrics_by_hand(case: str) -> None:
    labels, predicted, classes, expected = BY_HAND[case]
    found = CLASSIFICATION.metrics(picks(predicted, classes), torch.tensor(labels))
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)


@pytest.mark.usefixtures("_no_warnings")
def test_auc_of_three_classes_is_the_mean_of_one_against_the_rest() -> None:
    logits = torch.randn(60, 3, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(60) % 3
    scores = logits.softmax(1)
    expected = sum(
        mannwhitneyu(scores[labels == k, k], scores[labels != k, k]).statistic / (20 * 40) for k in range(3)
    )
    assert CLASSIFICATION.metrics(logits, labels)["auc"] == pytest.approx(expected / 3, abs=1e-6)


def pairs(scores: list[float], inside: list[bool]) -> float:
    """AUC, pair by pair."""
    ours = [score for score, within in zip(scores, inside, strict=True) if within]
    others = [score for score, within in zip(scores, inside, strict=True) if not within]
    won = sum((1.0 if mine > other else 0.5 * (mine == other)) for mine in ours for other in others)
    return won / (len(ours) * len(others))


@pytest.mark.usefixtures("_no_warnings")
@settings(max_examples=50, deadline=None)
@given(
    classes=st.integers(3, 6),
    seed=st.integers(0, 1000),
    answers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20),
)
def test_macro_auc_counts_pairs_and_leaves_out_absent_classes(
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
    areas = [pairs([row[k] for row in probable], [label == k for label in labels]) for k in present]
    assert seen == pytest.approx(sum(areas) / len(areas), abs=1e-9)


def test_auc_of_three_classes_by_hand() -> None:
    # Probabilities of class 0: e²/(e²+2), 1/3, then 1/(e³+2) three times: every pair is won.
    logits = torch.tensor([[2.0, 0, 0], [0, 0, 0], [0, 3, 0], [0, 0, 3], [0, 0, 3]])
    labels = torch.tensor([0, 0, 1, 2, 2])
    assert CLASSIFICATION.metrics(logits, labels)["auc"] == 1
    # Now the second image is the least likely of class 0: 3 of 6 pairs are lost. 1 and 2 stay as they were.
    logits[1, 0] = -5
    assert CLASSIFICATION.metrics(logits, labels)["auc"] == pytest.approx((3 / 6 + 1 + 1) / 3)


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


def test_the_losses_of_images_are_each_its_own() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    expected = [-math.log(math.exp(1) / (math.exp(2) + 1 + math.exp(1))), math.log(3)]
    assert CLASSIFICATION.image_losses(logits, torch.tensor([2, 0])).tolist() == pytest.approx(expected)


def test_the_loss_is_cross_entropy() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    expected = (-math.log(math.exp(1) / (math.exp(2) + 1 + math.exp(1))) + math.log(3)) / 2
    assert float(CLASSIFICATION.loss(logits, torch.tensor([2, 0]))) == pytest.approx(expected)
    assert float(CLASSIFICATION.loss(logits, torch.tensor([2, 0], dtype=torch.uint8))) == pytest.approx(
        expected
    )
