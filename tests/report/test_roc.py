"""ROC curves, against areas from MONAI."""

import numpy as np
import pytest
import torch
from monai.metrics import compute_roc_auc

from silodp.report.roc import MOST_POINTS, area, log_odds, roc, roc_charts


@pytest.mark.parametrize("ties", [False, True])
def test_the_area_is_that_of_another_library(ties: bool) -> None:
    rng = np.random.default_rng(1)
    scores, truth = rng.normal(size=200), rng.random(200) < 0.3
    scores[truth] += 0.7
    scores = scores.round(0 if ties else 9)
    curve = roc(scores, truth)
    assert (curve[0], curve[-1]) == ((0.0, 0.0), (1.0, 1.0))
    assert area(curve) == pytest.approx(compute_roc_auc(torch.tensor(scores), torch.tensor(truth).long()))
    if ties:
        assert len(curve) == len(set(scores)) + 1


def test_perfect_reversed_and_blind_scores() -> None:
    truth = np.array([False, False, True, True])
    assert area(roc(np.array([0.0, 1, 2, 3]), truth)) == 1
    assert area(roc(np.array([3.0, 2, 1, 0]), truth)) == 0
    assert roc(np.zeros(4), truth) == ((0.0, 0.0), (1.0, 1.0))


@pytest.mark.parametrize("truth", [[True, True], [False, False]])
def test_one_class_alone_has_no_curve(truth: list[bool]) -> None:
    assert roc(np.array([0.0, 1.0]), np.array(truth)) == ()


def test_nan_has_no_curve() -> None:
    assert roc(np.array([0.0, np.nan]), np.array([True, False])) == ()
    assert roc_charts({"a": (np.full((4, 2), np.nan), np.array([0, 1, 0, 1]))}, ["0", "1"]) == []


def test_log_odds_of_a_very_sure_network_stay_apart() -> None:
    odds = log_odds(np.array([[-300.0, 300, 0], [-400.0, 400, 0]]), 1)
    assert odds[1] > odds[0]
    assert odds == pytest.approx([300, 400])


def test_two_classes_show_hospitals_and_more_show_classes() -> None:
    rng = np.random.default_rng(0)
    two = {name: (rng.normal(size=(300, 2)), np.tile([0, 1], 150)) for name in ("Bern", "Cork")}
    (chart,) = roc_charts(two, ["healthy", "bleeding"])
    assert "bleeding" in chart.title
    assert [line.kind for line in chart.lines] == ["reference", "faint", "faint", "bold"]
    assert chart.lines[1].hint.startswith("Bern, AUC 0.")
    assert max(len(line.points) for line in chart.lines) <= MOST_POINTS
    three = {"Bern": (rng.normal(size=(300, 3)), np.tile([0, 1, 2], 100))}
    (chart,) = roc_charts(three, ["a", "b", "2"])
    assert [line.name.split(" (")[0] for line in chart.lines] == ["guessing", "a", "b", "class 2"]
    assert len({line.style for line in chart.lines if line.kind == "bold"}) == 3
