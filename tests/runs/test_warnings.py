"""What is said before a run trains."""

import logging

import pytest
import torch
from conftest import blob_cohort

from silodp import Cohort, Experiment, train
from silodp.runs.build import build
from silodp.runs.warnings import about_delta


def warned(experiment: Experiment, cohort: Cohort) -> list[str]:
    return build(experiment, cohort=cohort).warnings(experiment)


def test_a_large_delta_by_the_rule_is_said_and_one_of_your_own_is_not(experiment: Experiment) -> None:
    (line,) = warned(experiment, blob_cohort(3))
    assert line.startswith("privacy.delta = 0.1 by the paper's rule for 3 hospitals: with that probability")
    assert "--set privacy.delta=1e-5" in line
    assert warned(experiment.change(privacy__delta=1e-5), blob_cohort(3)) == []
    assert warned(experiment.change(privacy__noise_multiplier=0.0), blob_cohort(3)) == []
    assert len(about_delta(10)) == 1
    assert about_delta(11) == []


def test_one_hospital_and_empty_masks_are_said(experiment: Experiment) -> None:
    private = experiment.change(privacy__delta=1e-5)
    (line,) = warned(private, blob_cohort(1))
    assert line.startswith("only one hospital trains")
    images = torch.rand(20, 1, 16, 16)
    empty = Cohort.from_tensors({name: (images, torch.zeros(20, 1, 16, 16)) for name in "ab"})
    (line,) = warned(private, empty)
    assert line.startswith("all masks of the training images are empty")


def test_a_run_logs_them_before_its_first_round(
    experiment: Experiment, tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[int] = []
    with caplog.at_level(logging.WARNING, "silodp"):
        train(
            experiment.change(rounds=1), cohort=blob_cohort(2), out=f"{tmp_path}/run",
            on_round=lambda _: said.append(len(caplog.records)),
        )  # fmt: skip
    assert said == [1]
    assert "exposed outright" in caplog.records[0].getMessage()
