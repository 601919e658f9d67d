"""Run folders are their owner's alone, and keep nothing un-noised that no round will need."""

import json
import multiprocessing
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import killed_run
from pydantic import TypeAdapter

from silodp import Cohort, Experiment, InputError, resume, train
from silodp.federation import Federation
from silodp.files import private_folder
from silodp.hospital import Hospital
from silodp.messages import RoundPlan
from silodp.report import make_report
from silodp.runs.folder import RunFolder
from silodp.runs.schema import CohortFile, RoundRecord, Summary, Versions
from silodp.runs.statement import read_statement
from silodp.tracking import tracked


@pytest.fixture(params=[0o000, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """Everything in and including a folder that somebody else could look into."""
    return {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in [folder, *folder.rglob("*")]
        if stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)
    }


def test_a_run_is_its_owners_alone_whatever_the_umask(
    umask: int, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    seen: list[dict[str, str]] = []
    with tracked(folder, tensorboard=True, also=lambda _: seen.append(open_to_others(folder))) as on_round:
        train(experiment, cohort=cohort, out=folder, device="cpu", on_round=on_round)
    assert seen == [{}] * experiment.rounds
    assert open_to_others(folder) == {}
    names = {path.name for path in folder.iterdir()}
    assert names >= {".lock", "ledger.jsonl", "metrics.jsonl", "tensorboard"}


def test_a_folder_made_by_the_user_and_what_a_kill_left_there_are_tightened(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o755)
    for name in (".lock", "experiment.toml.part"):
        (folder / name).touch()
        (folder / name).chmod(0o644)
    train(experiment.change(rounds=1), cohort=cohort, out=folder, device="cpu")
    assert open_to_others(folder) == {}


def test_resuming_tightens_a_run_of_before(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    folder = train(experiment.change(rounds=1), cohort=cohort, out=tmp_path / "run", device="cpu").folder
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    resume(folder, cohort=cohort, device="cpu")
    assert open_to_others(folder) == {}


def test_a_folder_that_cannot_be_made_private_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    says = r"cannot be made private \(Operation not permitted\); give a folder"
    with pytest.raises(InputError, match=says):
        private_folder(tmp_path / "run")


ENDS = {
    "all rounds": {},
    "all rounds, the last between two checkpoints": {"checkpoint_every": 2},
    "budget": {"rounds": 9, "budget": {"epsilon": 60.0}},
    "budget between two checkpoints": {"rounds": 9, "checkpoint_every": 2, "budget": {"epsilon": 60.0}},
}


@pytest.mark.parametrize("resumed", [False, True], ids=["at once", "after a kill"])
@pytest.mark.parametrize("changes", ENDS.values(), ids=ENDS)
def test_however_a_run_ends_its_checkpoint_keeps_no_moments_and_no_secret(
    changes: dict, resumed: bool, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    asked = Experiment.build(
        experiment.model_dump(exclude_none=True) | changes,
        {"privacy.entropy": "system", "participation.rule": "poisson", "participation.rate": 0.9},
    )
    folder = RunFolder(tmp_path / "run")

    def kept() -> tuple[int, bool]:
        checkpoint = folder.load_checkpoint(torch.device("cpu"))
        assert checkpoint is not None
        files = list(folder.hospitals.rglob("*.pt"))
        moments = sum(tensor.numel() for file in files for tensor in tensors(torch.load(file)))
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
        assert open_to_others(folder.path) == {}
        return moments, bool(checkpoint["state"]["draws"])

    if resumed:
        killed_run(asked, 2, cohort=cohort, out=folder.path)
        assert kept()[0] > 0
        assert kept()[1]
        done = resume(folder.path, cohort=cohort, device="cpu")
    else:
        done = train(asked, cohort=cohort, out=folder.path, device="cpu")
    assert bool(done.summary["stopped"]) == ("budget" in changes)
    assert kept() == (0, False)
    again = resume(folder.path, cohort=cohort, device="cpu")
    assert kept() == (0, False)
    assert again.summary == done.summary


def tensors(content: object) -> Iterator[torch.Tensor]:
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict | list | tuple):
        for part in content.values() if isinstance(content, dict) else content:
            yield from tensors(part)


def test_a_stopped_run_is_not_trained_on(
    experiment: Experiment, cohort: Cohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hospitals' moments and the secret of its draws are gone: another round would be another run's."""
    asked = Experiment.build(experiment.model_dump(exclude_none=True) | {"budget": {"epsilon": 60.0}})
    stopped = train(asked.change(rounds=9), cohort=cohort, out=tmp_path / "run", device="cpu")
    monkeypatch.setattr(Federation, "rounds", None)
    assert resume(stopped.folder, cohort=cohort, device="cpu").summary == stopped.summary


def test_what_epsilon_leaves_out_names_the_files(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    done = train(experiment.change(rounds=1), cohort=cohort, out=tmp_path / "run", device="cpu")
    for notes in (done.summary["not_covered_by_epsilon"], read_statement(done.folder).not_covered):
        told = " ".join(notes)
        for name in ("metrics.jsonl", "summary.json", "model-best.safetensors", "cohort.json", "best round"):
            assert name in told
        assert "until the run is over: hospitals/, un-noised optimizer moments" in told
        assert "secret of the draws" in told
        assert "the seed" in told


@pytest.mark.parametrize("replaced", [False, True], ids=["the ledger in place", "a copy put in its place"])
def test_two_processes_never_overspend_together_when_the_lock_is_gone(
    replaced: bool, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """A real process stands in round 2 while .lock is deleted and the run is resumed beside it."""
    asked = Experiment.build(
        experiment.model_dump(exclude_none=True)
        | {"rounds": 9, "budget": {"epsilon": 60.0}, "privacy": {"entropy": "system"}}
    )
    folder, (here, there) = tmp_path / "run", multiprocessing.Pipe()

    def first() -> None:
        def on_round(record: dict) -> None:
            if record["round"] == 2:
                there.send("in round 2")
                there.recv()

        try:
            there.send(
                train(asked, cohort=cohort, out=folder, device="cpu", on_round=on_round).summary["rounds"]
            )
        except InputError as error:
            there.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=first)
    process.start()
    assert here.recv() == "in round 2"
    (folder / ".lock").unlink()
    if replaced:
        path = folder / "ledger.jsonl"
        path.with_name("copy").write_bytes(path.read_bytes())
        path.with_name("copy").rename(path)
        stopped_after = resume(folder, cohort=cohort, device="cpu").summary["rounds"]
    else:
        with pytest.raises(InputError, match="another process is writing this ledger"):
            resume(folder, cohort=cohort, device="cpu")
    here.send("go on")
    said = here.recv()
    process.join()
    statement = read_statement(folder)
    assert statement.budget_spent is not None
    assert statement.budget_spent <= 60
    assert statement.problems == ()
    if replaced:
        assert "ledger.jsonl: was removed or replaced during the run; nothing more is released" in said
        assert statement.rounds == stopped_after
    else:
        assert statement.rounds == said  # the first ends as if nothing had happened


def test_before_every_budget_check_the_ledger_is_compared(
    experiment: Experiment, cohort: Cohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another has written must not be missing from the sum that the budget is held against."""
    folder = tmp_path / "run"

    def write_along(_: dict) -> None:
        line = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)[-1]
        with (folder / "ledger.jsonl").open("ab") as file:
            file.write(line)

    def listed(self: Hospital, plan: RoundPlan, **more: bool) -> Any:
        trained.append(plan.round)
        return honest(self, plan, **more)

    honest, trained = Hospital.answer, list[int]()
    monkeypatch.setattr(Hospital, "answer", listed)
    with pytest.raises(InputError, match="was written to by another process during the run"):
        train(experiment, cohort=cohort, out=folder, device="cpu", on_round=write_along)
    assert set(trained) == {1}


@pytest.mark.parametrize("found", ["", "format = 1\n", "format = 99\n", 'format = "two"\n'])
@pytest.mark.parametrize(
    "read", [resume, read_statement, lambda folder: make_report([folder], folder / "page.html")]
)
def test_a_run_of_another_format_is_told_in_one_sentence(
    found: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    """Whatever else that other silodp wrote into its files."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "experiment.toml").write_text(f"{found}[clipping]\nrule = 'unheard-of'\nsettings = 3\n")
    says = r"run: a run of format .*, and this silodp reads 3; use the version"
    with pytest.raises(InputError, match=says):
        read(folder)


def test_the_schema_is_what_a_run_writes(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    """Neither more nor less: who adds a number to a file says so beside those who read it."""
    train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu")
    written = {
        RoundRecord: json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0]),
        Summary: json.loads((tmp_path / "run/summary.json").read_text()),
        CohortFile: json.loads((tmp_path / "run/cohort.json").read_text()),
        Versions: json.loads((tmp_path / "run/versions.json").read_text()),
    }
    for kind, content in written.items():
        named = TypeAdapter(kind).validate_python(content, strict=True)  # without what the kind does not name
        assert named == content
