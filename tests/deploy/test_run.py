"""A run over a network is the run in one process, whatever happens on the way."""

import math
from pathlib import Path

import pytest
import torch
from conftest import blob_cohort, command_line
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from network import REHEARSAL, Federation, priced
from safetensors.torch import load_file

from silodp import Experiment, train
from silodp.cli.display import show_result
from silodp.errors import InputError
from silodp.models.kinds import ModelSettings
from silodp.models.start import write_start
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.ledger import read_ledger
from silodp.report import make_report
from silodp.runs.listing import list_runs
from silodp.runs.statement import read_statement
from silodp.runs.wording import describe_round


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
    there = Federation(tmp_path, cohort=blob_cohort()).run(asked)
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
        run = Federation(tmp_path / noise).run(tiny.change(privacy__noise=noise, intermediaries__count=1))
        seen = read_statement(run.folder).seen_from
        assert seen is not None
        shown[noise] = command_line("privacy", run.folder).stdout
        mu = math.sqrt(3) / tiny.privacy.noise_multiplier
        assert seen.outside == pytest.approx(gaussian_epsilon(mu, 0.1), rel=1e-3)
        shares = gaussian_epsilon(mu * math.sqrt(3), 0.1) if noise == "shared" else math.inf
        assert seen.coordinator == pytest.approx(shares, rel=1e-3)
    assert "∞ against the coordinator" in " ".join(shown["central"].split())
    assert "∞" not in " ".join(shown["shared"].split()).partition("For a hospital ε is")[2].partition(".")[0]
    local = train(tiny.change(diagnostics=False), cohort=blob_cohort(), out=tmp_path / "local", device="cpu")
    assert read_statement(local.folder).seen_from is None


def test_a_run_of_which_no_figures_come_out_is_shown_without_them(tiny: Experiment, tmp_path: Path) -> None:
    """As hospitals are by default: every line, table and page of the run does without metrics."""
    hospitals = Federation(tmp_path, REHEARSAL.model_copy(update={"validation_metrics": False}))
    said: list[str] = []
    result = hospitals.run(tiny, on_round=lambda record: said.append(describe_round(record)))
    assert len(said) == 3
    assert all("ε hospital" in line and "nan" not in line for line in said)
    show_result(result)
    card = (result.folder / "MODEL_CARD.md").read_text()
    assert "no hospital lets its figures out" in card
    assert "simulated" not in card.split("## Limits")[1]
    listed = command_line("runs", hospitals.out)
    assert (listed.returncode, "finished" in listed.stdout) == (0, True)
    page = make_report([result.folder], tmp_path / "page.html").read_text()
    assert "no hospital lets its figures out" in page
    assert "The images are at the hospitals, so there are no predictions." in page
    assert "metrics on validation and test images" not in page
    assert "nan" not in page.split("</style>")[1].lower()


def test_a_hospitals_own_files_are_not_listed_as_a_damaged_run(tiny: Experiment, tmp_path: Path) -> None:
    hospitals = Federation(tmp_path)
    (tmp_path / "sites" / "site.toml").touch()
    hospitals.run(tiny)
    assert [one.folder for one in list_runs([tmp_path])] == [hospitals.out]


def test_a_run_goes_on_only_with_the_hospitals_that_signed(tiny: Experiment, tmp_path: Path) -> None:
    hospitals = Federation(tmp_path)
    hospitals.run(tiny)
    hospitals.keys["hospital-1"] = Ed25519PrivateKey.generate()
    network = hospitals.network()
    with pytest.raises(
        InputError, match=r"the roster is not the one that was agreed on; restore roster\.toml"
    ):
        hospitals.resume(network)
    assert network.sent == []


def test_a_start_that_is_not_the_packages_must_be_the_same_file_at_every_hospital(
    experiment: Experiment, tmp_path: Path
) -> None:
    def write(folder: Path, seed: int) -> Path:
        folder.mkdir(exist_ok=True)
        torch.manual_seed(seed)
        network = ModelSettings.of(kind="unet", features=2, levels=1, affine=True).make(1, 1)
        write_start(folder / "own.safetensors", network, {"origin": "generated"})
        return folder / "own.safetensors"

    hospitals, starts = Federation(tmp_path), tmp_path / "sites" / "starts"
    asked = priced(experiment).change(model__affine=True, model__start=str(write(tmp_path / "here", 0)))
    with pytest.raises(InputError, match=r"own\.safetensors: the hospital has no such file among its starts"):
        hospitals.run(asked)
    write(starts, 1)
    with pytest.raises(InputError, match="does not sign the agreement"):
        hospitals.run(asked)
    assert not any(site.ledger.events for site in hospitals.sites.values())
    write(starts, 0)
    assert read_statement(hospitals.run(asked).folder).problems == ()
