"""A rehearsal finds what is open on generated hospitals, and reads nothing of the real ones."""

from pathlib import Path
from typing import Any

import pytest
from conftest import blob_cohort

import silodp.pretraining.hospitals
from silodp import Experiment, InputError
from silodp.models.kinds import ModelSettings
from silodp.models.start import write_start
from silodp.runs import rehearsal
from silodp.runs.build import build
from silodp.runs.rehearsal import Rehearsal, rehearse


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """With a start from shapes, and few trials."""
    network = ModelSettings.of(kind="unet", features=2, levels=1, affine=True).make(1, 1)
    write_start(tmp_path / "start.safetensors", network, {"origin": "generated", "kind": "shapes"})
    monkeypatch.setattr(silodp.pretraining.hospitals, "FOR_TEST", 24)
    monkeypatch.setattr(rehearsal, "WORLDS", (0,))
    few = {"local.learning_rate": (0.01, 0.1), "clipping.noise": (0.5, 2.0), "rounds": (1, 2)}
    monkeypatch.setattr(rehearsal, "GRID", rehearsal.GRID | few)
    return Experiment.build(
        {
            "model": {"features": 2, "levels": 1, "affine": True, "trainable": "norm+head",
                      "start": str(tmp_path / "start.safetensors")},
            "local": {"optimizer": "sgd", "batch_size": 8},
            "intermediaries": {"rule": "fixed", "count": 1},
            "clipping": {"rule": "rehearsed"},
            "budget": {"epsilon": 8.0, "sets_noise": True},
        }
    )  # fmt: skip


def test_what_is_open_is_found_and_what_is_said_stays(recipe: Experiment) -> None:
    told: list[str] = []

    def trials(experiment: Experiment) -> dict[str, Any]:
        return rehearse(experiment, [9, 12], (1, 32, 32), "cpu", lambda tried, _: told.append(tried))

    found = trials(recipe)
    assert found.keys() == {"local.learning_rate", "clipping.noise", "rounds"}
    assert found["local.learning_rate"] in (0.01, 0.1)
    assert found["rounds"] in (1, 2)
    assert 0.3 < found["clipping.noise"] < 3
    assert any("clipping.noise = 2" in line and "rounds = 2" in line for line in told)
    assert trials(recipe) == found
    assert trials(recipe.change(rounds=1, local__learning_rate=0.02)).keys() == {"clipping.noise"}


def test_the_best_is_taken(recipe: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """On made-up scores with one peak: a search along one setting after the other must find it."""
    scores: dict[object, float] = {0.01: 0.0, 0.1: 1.0, 0.5: 0.2, 1: 0.1, 2: 0.0}

    def score(self: Rehearsal, settings: dict[str, object]) -> float:
        return sum(scores.get(value, 0.05) for value in settings.values())

    monkeypatch.setattr(Rehearsal, "score", score)
    tree = recipe.model_dump(exclude_none=True, exclude_unset=True)
    del tree["model"]["trainable"]
    scores["norm+head"], scores["head"] = 0.0, 0.3
    found = Rehearsal(Experiment.build(tree), []).find()
    assert found["model.trainable"] == "head"
    assert (found["local.learning_rate"], found["rounds"]) == (0.1, 1)
    assert found["clipping.noise"] == 0.5


def test_a_run_writes_down_what_its_rehearsal_found(recipe: Experiment) -> None:
    told: list[str] = []
    given: Any = {
        "cohort": blob_cohort(images=15),
        "device": "cpu",
        "on_trial": lambda tried, _: told.append(tried),
    }
    parts = build(recipe, **given)
    assert told
    assert parts.experiment.clipping.first_bound() > 0
    told.clear()
    build(parts.experiment, **given)
    assert told == []  # written down, it is not held again


def test_without_generated_images_there_is_no_rehearsal(recipe: Experiment) -> None:
    with pytest.raises(
        InputError, match=r"model\.start = None says of none; make one with `silodp pretrain`"
    ):
        build(recipe.change(model__start=None), cohort=blob_cohort(), device="cpu")
