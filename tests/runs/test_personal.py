"""A hospital's own fine-tuning: better at home, kept at home."""

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import blob_cohort, command_line, succeed
from discs_run import discs, train_on_discs
from safetensors.torch import load_file

from silodp import Cohort, Experiment, train
from silodp.errors import InputError
from silodp.runs.personal import Tuning, personalise


def test_a_model_that_has_hardly_learnt_gains_at_home(experiment: Experiment, tmp_path: Path) -> None:
    cohort = blob_cohort(images=60)
    hardly = experiment.change(
        rounds=1, privacy__noise_multiplier=0.0, clipping__rule="none", local__learning_rate=1e-4
    )
    train(hardly, cohort=cohort, out=tmp_path / "run", device="cpu")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    tuning = Tuning(epochs=30, learning_rate=0.3)
    found = personalise(tmp_path / "run", "hospital-0", tuning, cohort=cohort, device="cpu")
    assert found.scores.keys() == {"alone", "released", "personal"}
    assert found.scores["personal"].values["dice"] > found.scores["released"].values["dice"] + 0.1
    after = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert after == before  # nothing of it goes back
    released = load_file(tmp_path / "run" / "model.safetensors")
    assert found.tensors.keys() == released.keys()
    assert any(not torch.equal(found.tensors[name], released[name]) for name in released)


def test_your_own_network_is_copied(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    model = torch.nn.Conv2d(1, 1, 3, padding=1)
    before = model.weight.detach().clone()
    given: Any = {"cohort": cohort, "model": model, "device": "cpu"}
    train(experiment.change(rounds=1), out=tmp_path / "run", **given)
    one, two = (personalise(tmp_path / "run", "hospital-0", Tuning(epochs=2), **given) for _ in range(2))
    assert torch.equal(model.weight, before)
    assert one.scores["alone"].values == two.scores["alone"].values


def test_at_the_command_line(tmp_path: Path) -> None:
    run, data = train_on_discs(tmp_path)
    done = command_line("personalise", run, "--hospital", "a", "--epochs", 2, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run-a"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    record = json.loads((folder / "personal.json").read_text())
    assert record["test"].keys() == {"alone", "released", "personal"}
    summary = json.loads((run / "summary.json").read_text())
    released = summary["test"]["last"]["hospitals"]["a"]["dice"]
    assert record["test"]["released"]["metrics"]["dice"] == pytest.approx(released)  # the same judge
    for name in ("alone", "released", "personal"):
        assert f"{record['test'][name]['metrics']['dice']:.3f}" in done.stdout
    assert "do not pass it on" in done.stdout
    predicted = command_line("predict", folder, data, "--out", tmp_path / "masks", "--device", "cpu")
    assert predicted.returncode == 0, predicted.stderr
    assert command_line("runs", tmp_path, "--json").stdout.count('"folder"') == 1  # it is no run
    for command in (
        ("report", folder), ("personalise", folder, "--hospital", "a"),
        ("export", folder, "--out", tmp_path / "model.onnx"),
        ("evaluate", folder, data, "--page", tmp_path / "page.html"),
    ):  # fmt: skip
        refused = command_line(*command)
        assert refused.returncode == 2
        assert "run-a: a model of one hospital, by `silodp personalise`" in refused.stderr
    again = command_line("personalise", run, "--hospital", "a")
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_hospitals_and_folders_of_any_name(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, masks = discs(60, np.random.default_rng(0))
    hospital = np.array(["Uni/Klinik Köln", ".."])[np.arange(60) % 2]
    np.savez(tmp_path / "data.npz", image=images, mask=masks, patient=np.arange(60), hospital=hospital)
    files = {"kind": "npz", "path": str(tmp_path / "data.npz"), "cache": str(tmp_path / "cache")}
    train(experiment.change(rounds=1, cohort=files), out=tmp_path / "run", device="cpu")
    monkeypatch.chdir(tmp_path / "run")
    for name, folder in (("Uni/Klinik Köln", "run-Uni_Klinik_Köln"), ("..", "run-..")):
        succeed("personalise", ".", "--hospital", name, "--epochs", 1, "--device", "cpu")
        assert (tmp_path / folder / "personal.json").exists()


def test_a_hospital_that_is_not_there_is_named(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match="--hospital hospital-9: the run has hospital-0, hospital-1"):
        personalise(tmp_path / "run", "hospital-9", cohort=cohort, device="cpu")
