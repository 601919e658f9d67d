"""A run over a network is the run in one process, whatever happens on the way."""

import math
from pathlib import Path

import pytest
import torch
from conftest import blob_cohort, command_line
from network import Federation
from safetensors.torch import load_file

from silodp import Experiment, train
from silodp.deploy.run import run_deployed
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.ledger import read_ledger
from silodp.runs.statement import read_statement


@pytest.fixture(scope="module")
def tiny(experiment: Experiment) -> Experiment:
    """Seeded, so that its noise can be drawn again elsewhere."""
    return experiment.change(privacy__entropy="seed", threads=1, rounds=3)


def model_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local__state": "kept", "server__optimizer": "dp2-rmsprop"},
        {"privacy__noise": "shared"},
        {"server__average": 0.5, "participation": {"rule": "poisson", "rate": 0.7}},
    ],
    ids=["plain", "kept states", "shared noise", "some hospitals"],
)
def test_the_model_and_the_ledger_are_those_of_one_process(
    changes: dict[str, object], tiny: Experiment, tmp_path: Path
) -> None:
    asked = tiny.change(**changes)
    here = train(asked.change(diagnostics=False), cohort=blob_cohort(), out=tmp_path / "here", device="cpu")
    hospitals = Federation(blob_cohort(), tmp_path / "sites")
    coordinator = hospitals.coordinator(hospitals.network())
    there = run_deployed(asked, coordinator, out=tmp_path / "there", device="cpu")
    one, other = model_of(here.folder), model_of(there.folder)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    ledgers = [read_ledger(folder / "ledger.jsonl").events for folder in (here.folder, there.folder)]
    assert ledgers[0] == ledgers[1]
    assert there.summary["test"]["last"]["mean"] == here.summary["test"]["last"]["mean"]
    assert read_statement(there.folder).problems == ()


def test_privacy_shows_who_sees_what(tiny: Experiment, tmp_path: Path) -> None:
    """Shared noise: the coordinator sees one share; central: everything, so that no ε holds against it."""
    shown = {}
    for noise in ("central", "shared"):
        hospitals = Federation(blob_cohort(), tmp_path / f"sites-{noise}")
        asked = tiny.change(privacy__noise=noise, intermediaries__count=1)
        run = run_deployed(
            asked, hospitals.coordinator(hospitals.network()), out=tmp_path / noise, device="cpu"
        )
        seen = read_statement(run.folder).seen_from
        assert seen is not None
        shown[noise] = command_line("privacy", run.folder).stdout
        mu = math.sqrt(3) / tiny.privacy.noise_multiplier
        assert seen.outside == pytest.approx(gaussian_epsilon(mu, 0.1), rel=1e-3)
        shares = gaussian_epsilon(mu * math.sqrt(3), 0.1) if noise == "shared" else math.inf
        assert seen.coordinator == pytest.approx(shares, rel=1e-3)
    assert "on their way, ∞; another" in " ".join(shown["central"].split())
    assert "against who looks: outside" in shown["shared"]
    local = train(tiny.change(diagnostics=False), cohort=blob_cohort(), out=tmp_path / "local", device="cpu")
    assert read_statement(local.folder).seen_from is None
