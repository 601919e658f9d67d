"""`resume` with another number of rounds: to the bit the run that was asked for so many at first."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Killed, assert_same_files, blob_cohort, kill_after, killed_run, succeed, without_seconds
from conftest import command_line as silodp

from silodp import Cohort, Experiment, InputError, resume, train
from silodp.runs.folder import RunFolder, read_experiment
from silodp.runs.statement import read_statement
from silodp.runs.version import version

SAME = ("experiment.toml", "ledger.jsonl", "model.safetensors", "model-best.safetensors", "cohort.json")
TIMES = ("wall_seconds", "training_seconds", "images_per_second")


def assert_same_run(one: Path, two: Path) -> None:
    assert_same_files(one, two, *SAME)
    assert without_seconds(one) == without_seconds(two)
    assert RunFolder(one).checkpoint_facts() == RunFolder(two).checkpoint_facts()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, two)]
    for key in summaries[0].keys() - set(TIMES):
        assert summaries[0][key] == summaries[1][key], key
    for folder in (one, two):
        assert read_statement(folder).problems == ()


@pytest.fixture(scope="module")
def fresh(experiment: Experiment) -> Experiment:
    """Whose hospitals keep nothing from round to round, so that it goes on after its end."""
    return experiment.change(local__state="fresh")


@pytest.fixture(scope="module")
def whole(fresh: Experiment, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The runs that were asked for three and for five rounds at first; nobody changes them."""
    parent = tmp_path_factory.mktemp("whole")
    return {
        rounds: train(
            fresh.change(rounds=rounds), cohort=blob_cohort(), out=parent / str(rounds), device="cpu"
        ).folder
        for rounds in (3, 5)
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"server__optimizer": "fedadam", "checkpoint_every": 2},
        {"server__optimizer": "dp2-rmsprop", "server__interval": 2},
        {"intermediaries__rule": "adaptive", "clipping__rule": "median"},
        {"participation__rule": "poisson", "participation__rate": 0.7, "privacy__noise_multiplier": 2.0},
        {"privacy__noise": "shared", "diagnostics": False},
        {"budget": {"epsilon": 1e6}},
        {"local": {"optimizer": "sgd", "momentum": 0.0}},
    ],
    ids=str,
)
def test_a_finished_run_of_three_rounds_goes_on_to_five(
    changes: dict[str, Any], fresh: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    asked = fresh.change(**changes)
    whole = train(asked.change(rounds=5), cohort=cohort, out=tmp_path / "whole", device="cpu")
    short = train(asked.change(rounds=3), cohort=cohort, out=tmp_path / "run", device="cpu")
    assert short.summary["rounds"] == 3
    longer = resume(short.folder, rounds=5, cohort=cohort, device="cpu")
    assert longer.epsilon == whole.epsilon
    assert_same_run(short.folder, whole.folder)


def test_the_budget_ends_the_longer_run_where_it_ends_the_whole_one(
    fresh: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    asked = Experiment.build(fresh.model_dump(exclude_none=True) | {"budget": {"epsilon": 60.0}})
    whole = train(asked.change(rounds=9), cohort=cohort, out=tmp_path / "whole", device="cpu")
    assert 2 < whole.summary["rounds"] < 9
    train(asked.change(rounds=2), cohort=cohort, out=tmp_path / "run", device="cpu")
    resume(tmp_path / "run", rounds=9, cohort=cohort, device="cpu")
    assert_same_run(tmp_path / "run", whole.folder)
    message = r"rounds = 12: the budget ended .* after round \d \(.*start a new run"
    untouched(whole.folder, message, rounds=12, cohort=cohort)


@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_an_unfinished_run_goes_on_to_more_rounds_or_fewer_with_its_states_kept(
    rounds: int, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    whole = train(experiment.change(rounds=rounds), cohort=cohort, out=tmp_path / "whole", device="cpu")
    killed_run(experiment.change(rounds=4), 2, cohort=cohort, out=tmp_path / "run")
    resume(tmp_path / "run", rounds=rounds, cohort=cohort, device="cpu")
    assert_same_run(tmp_path / "run", whole.folder)


def untouched(folder: Path, message: str, **own: Any) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=message):
        resume(folder, device="cpu", **own)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_whose_hospitals_kept_states_is_refused_with_the_way_out(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu")
    message = (
        r"rounds = 5: .*run is over, .*local\.state = kept\); start a new run with `silodp run .*=5`, which"
    )
    untouched(tmp_path / "run", message, rounds=5, cohort=cohort)
    # By hand in the file, it is the same.
    path = tmp_path / "run/experiment.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 5"))
    untouched(tmp_path / "run", message, cohort=cohort)


def test_fewer_rounds_than_are_released_are_refused(
    fresh: Experiment, whole: dict[int, Path], cohort: Cohort, tmp_path: Path
) -> None:
    shutil.copytree(whole[3], tmp_path / "run")
    untouched(tmp_path / "run", r"rounds = 2: .* has released 3 already", rounds=2, cohort=cohort)
    untouched(tmp_path / "run", "rounds = 0: choose a whole number of at least 1", rounds=0, cohort=cohort)
    # The checkpoint is of round 2, the ledger knows of round 3.
    killed_run(fresh.change(rounds=5, checkpoint_every=2), 3, cohort=cohort, out=tmp_path / "killed")
    untouched(tmp_path / "killed", r"rounds = 2: .* has released 3 already", rounds=2, cohort=cohort)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["remove_results", "save_experiment", "save_checkpoint", "truncate_metrics"])
def test_a_kill_on_the_way_leaves_the_old_run_or_the_new_one(
    step: str, after: bool, whole: dict[int, Path], cohort: Cohort, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = shutil.copytree(whole[3], tmp_path / "run")
    honest: Callable[..., Any] = getattr(RunFolder, step)

    def kill(*given: Any) -> None:
        if after:
            honest(*given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, step, kill)
        with pytest.raises(Killed):
            resume(folder, rounds=5, cohort=cohort, device="cpu")
    assert read_statement(folder).problems == ()
    asked = read_experiment(folder).rounds
    resume(folder, cohort=cohort, device="cpu")
    assert_same_run(folder, whole[asked])
    resume(folder, rounds=5, cohort=cohort, device="cpu")
    assert_same_run(folder, whole[5])


def test_with_noise_of_the_system_the_draws_get_a_new_secret(
    fresh: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    asked = fresh.change(
        privacy__entropy="system", participation__rule="poisson", participation__rate=0.9, rounds=1
    )
    folder = RunFolder(train(asked, cohort=cohort, out=tmp_path / "run", device="cpu").folder)

    def secret() -> str:
        checkpoint = folder.load_checkpoint(torch.device("cpu"))
        assert checkpoint is not None
        return str(checkpoint["state"]["draws"])

    assert secret() == ""
    seen = []
    resume(folder.path, rounds=4, cohort=cohort, device="cpu", on_round=lambda _: seen.append(secret()))
    assert len(seen[0]) == 64
    assert seen == [seen[0], seen[0], ""]
    assert read_statement(folder.path).problems == ()


def test_at_the_command_line(tmp_path: Path) -> None:
    small = ("rounds=1", "local.state=fresh", "cohort.slices=40", "cohort.image_size=32", "model.features=2",
             "model.levels=1")  # fmt: skip
    options = [word for change in small for word in ("--set", change)]
    succeed("run", "prostate-small", *options, "--out", tmp_path / "run", "--device", "cpu")
    done = succeed("resume", tmp_path / "run", "--rounds", 2, "--device", "cpu", "--json")
    assert json.loads(done.stdout)["rounds"] == 2
    assert "round 2/2" in done.stderr
    refused = silodp("resume", tmp_path / "run", "--rounds", 1, "--device", "cpu")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_the_versions_stand_there_from_the_start_and_another_is_warned_of(
    fresh: Experiment, cohort: Cohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    path = tmp_path / "run/versions.json"
    own = {"silodp": version(), "torch": torch.__version__, "after_round": 0}

    def at_the_start(folder: RunFolder, content: object) -> None:
        assert json.loads(path.read_text()) == {"versions": [own]}
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", at_the_start)
        with pytest.raises(Killed):
            train(fresh.change(privacy__delta=0.01), cohort=cohort, out=tmp_path / "run", device="cpu")
    with caplog.at_level(logging.WARNING), pytest.raises(Killed):
        resume(tmp_path / "run", cohort=cohort, device="cpu", on_round=kill_after(1))
    assert caplog.text == ""
    monkeypatch.setattr("silodp.runs.folder.version", lambda: "0.2.0")
    monkeypatch.setattr(torch, "__version__", "9.9")
    resume(tmp_path / "run", cohort=cohort, device="cpu")
    assert f"trained with silodp {own['silodp']} and PyTorch {own['torch']}, " in caplog.text
    assert "continued with silodp 0.2.0 and PyTorch 9.9; results may differ" in caplog.text
    other = {"silodp": "0.2.0", "torch": "9.9", "after_round": 1}
    assert json.loads(path.read_text()) == {"versions": [own, other]}
    caplog.clear()
    resume(tmp_path / "run", cohort=cohort, device="cpu")
    assert caplog.text == ""


def test_a_mean_of_the_last_rounds_that_has_begun_is_not_moved(
    fresh: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    averaging = fresh.change(server__average=0.5, rounds=4)
    killed_run(averaging, 2, cohort=cohort, out=tmp_path / "run")
    message = "rounds = {}: the model of .* is a mean of its last rounds, which have"
    untouched(tmp_path / "run", message.format(3), rounds=3, cohort=cohort)  # would be 2 and 3
    resume(tmp_path / "run", rounds=6, cohort=cohort, device="cpu")  # 4, 5 and 6
    train(averaging.change(rounds=6), cohort=cohort, out=tmp_path / "whole", device="cpu")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    untouched(tmp_path / "run", message.format(9), rounds=9, cohort=cohort)


def test_noise_by_the_budget_stays_what_it_was_when_the_run_grows_longer(
    fresh: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """A longer run must not have less noise from now on, nor more: its budget ends it where it was to end."""
    sets = fresh.change(budget={"epsilon": 4.0, "sets_noise": True})
    train(sets, cohort=cohort, out=tmp_path / "run", device="cpu")
    z = read_experiment(tmp_path / "run").privacy.noise_multiplier
    result = resume(tmp_path / "run", rounds=5, cohort=cohort, device="cpu")
    assert read_experiment(tmp_path / "run").privacy.noise_multiplier == z
    assert (result.summary["rounds"], result.summary["stopped"] is not None) == (3, True)
