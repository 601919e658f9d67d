"""What the page shows of a model is what the run measured, on images chosen blindly."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ImageColor
from small_runs import CT, MRI

from silodp import Experiment, train
from silodp.cohorts import load_cohort
from silodp.report import pictures, predictions
from silodp.report.predictions import predict
from silodp.report.reading import Run, read_runs
from silodp.runs.build import trainer_outside
from silodp.runs.fitting import named_network
from silodp.tasks import task_named

TREES = {
    "segmentation": MRI | {"rounds": 2, "privacy": {"noise_multiplier": 0.0}},
    "classification": CT | {"rounds": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    for task, tree in TREES.items():
        train(Experiment.build(tree | {"name": task}), out=folder / task, device="cpu")
    return {task: read_runs([folder / task])[0] for task in TREES}


@pytest.fixture(params=list(TREES))
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    return runs[request.param]


def test_the_model_is_that_of_the_run(run: Run) -> None:
    """Its metrics on the test images, hospital by hospital, are those of summary.json to the last digit."""
    cohort = load_cohort(run.experiment.cohort)
    trainer = trainer_outside(named_network(run.experiment, cohort, run.folder), run.experiment)
    task = task_named(run.experiment.task)
    assert run.summary is not None
    for hospital in cohort.hospitals:
        logits = torch.from_numpy(predictions._logits(trainer, hospital)).float()
        found = task.metrics(logits, hospital.test.targets)
        assert found == pytest.approx(run.summary["test"]["last"]["hospitals"][hospital.name], nan_ok=True)


def test_the_same_images_whatever_the_model(run: Run, tmp_path: Path) -> None:
    """Another seed, another model: the same pictures under the outlines, other words."""
    other = train(run.experiment.change(seed=5), out=tmp_path / "other", device="cpu").folder
    (beside,) = read_runs([other])
    ours, theirs = (
        np.stack([picture.pixels for block in gallery.blocks for picture in block.pictures])
        for gallery in (predict(run).gallery, predict(beside).gallery)
        if gallery is not None
    )
    if run.experiment.task == "classification":
        assert np.array_equal(ours, theirs)
    else:  # but for the outlines, which have colours
        grey = (np.ptp(ours, axis=3) == 0) & (np.ptp(theirs, axis=3) == 0)
        assert grey.mean() > 0.3
        assert np.array_equal(ours[grey], theirs[grey])


def test_of_many_hospitals_a_few_are_shown(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_HOSPITALS", 2)
    gallery = predict(runs["segmentation"]).gallery
    assert gallery is not None
    assert [block.name for block in gallery.blocks] == runs["segmentation"].hospitals[:2]
    assert "2 of 3 hospitals are shown" in gallery.about


def test_a_small_a_middle_and_a_large_one() -> None:
    truth = np.zeros((12, 1, 8, 8), bool)
    for index, area in enumerate([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 64]):
        truth[index].reshape(-1)[:area] = True
    assert pictures._by_size(truth) == [(3, "small"), (6, "middle"), (10, "large")]
    assert pictures._by_size(truth[:4]) == [(2, ""), (3, "")]
    assert pictures._by_size(truth[:2]) == [(0, "")]


def test_true_and_predicted_outlines_have_the_colours_of_the_legend(runs: dict[str, Run]) -> None:
    run = runs["segmentation"]
    gallery = predict(run).gallery
    assert gallery is not None
    assert [block.name for block in gallery.blocks] == run.hospitals
    assert "hospitals are shown" not in gallery.about
    cohort = load_cohort(run.experiment.cohort)
    data = {hospital.name: hospital for hospital in cohort.hospitals}
    (true_name, true_ink), (predicted_name, predicted_ink) = gallery.legend
    assert (true_name, predicted_name) == ("true outline", "predicted outline")
    for block in gallery.blocks:
        truth = data[block.name].test.targets.numpy() > 0
        for (index, _), picture in zip(pictures._by_size(truth), block.pictures, strict=True):
            times = picture.height // truth.shape[-1]
            inside = truth[index, 0].repeat(times, 0).repeat(times, 1)
            is_true = (picture.pixels == ImageColor.getrgb(true_ink.colour)).all(2)
            assert is_true.any()
            assert not is_true[~inside].any()  # drawn from inside
            if "nothing predicted" not in picture.caption:
                assert (picture.pixels == ImageColor.getrgb(predicted_ink.colour)).all(2).any()


def test_the_dice_under_a_slice_is_its_own(runs: dict[str, Run]) -> None:
    run = runs["segmentation"]
    truth = np.zeros((1, 8, 8), bool)
    truth[0, :4] = True
    predicted = np.zeros((1, 8, 8), bool)
    predicted[0, 2:4] = True
    hospital = load_cohort(run.experiment.cohort).hospitals[0]
    large = hospital.test.images[0, :, :8, :8]
    small = type(hospital)("x", *(3 * [type(hospital.test)(large[None], hospital.test.targets[:1])]))
    assert pictures._slice(small, 0, truth, predicted, "small").caption == ("small: Dice 0.67",)
    nothing = pictures._slice(small, 0, truth, predicted & False, "")
    assert nothing.caption == ("Dice 0.00", "nothing predicted")
    empty = pictures._slice(small, 0, truth & False, predicted & False, "")
    assert empty.caption == ("Dice 1.00", "nothing predicted", "nothing marked")


def test_a_probability_is_the_models(runs: dict[str, Run]) -> None:
    run = runs["classification"]
    hospital = load_cohort(run.experiment.cohort).hospitals[0]
    label = int(hospital.test.targets[0])
    shares = np.array([0.25, 0.75])
    words = pictures._image(hospital, 0, np.log(shares) + 100, ["healthy", "ill"]).caption
    verdict = "right" if label == 1 else "wrong"
    assert words == (f"truth: {['healthy', 'ill'][label]}", f"model: ill, 75% ({verdict})", hospital.name)
    lost = pictures._image(hospital, 0, np.array([np.nan, 0.0]), ["healthy", "ill"])
    assert "no answer" in lost.caption[1]


def test_a_model_of_another_shape_is_left_out(run: Run, tmp_path: Path) -> None:
    from dataclasses import replace
    from shutil import copytree

    folder = copytree(run.folder, tmp_path / "run")
    (folder / "model.safetensors").write_bytes(b"nothing of the kind")
    assert "does not fit" in predict(replace(run, folder=folder)).missing
    changed = json.loads(json.dumps(run.cohort))
    changed["images"] += 1
    assert "no longer those" in predict(replace(run, cohort=changed)).missing
