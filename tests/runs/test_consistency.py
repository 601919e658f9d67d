"""Releases that a run's files remember cannot be lost from its ledger, nor started over, unnoticed."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from conftest import Killed, blob_cohort, kill_after

from silodp import Experiment, InputError, resume, train
from silodp.runs.statement import read_statement
from silodp.runs.training import _Run

RECORDS = ("ledger.jsonl", "metrics.jsonl", "checkpoint.pt", "summary.json", "model.safetensors")


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock" and not path.name.endswith(".part")
    }


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """One run's files after each of its four rounds, and at its end."""
    experiment = Experiment.build(
        {
            "rounds": 4,
            "checkpoint_every": 2,
            "model": {"features": 2, "levels": 1},
            "local": {"learning_rate": 0.01, "batch_size": 4},
            "intermediaries": {"rule": "fixed", "count": 2},
            "privacy": {"entropy": "system"},
        }
    )
    folder = tmp_path_factory.mktemp("stages") / "run"
    found: dict[str, dict[str, bytes]] = {}

    def look(record: dict) -> None:
        found[f"after {record['round']}"] = content(folder)

    train(experiment, cohort=blob_cohort(), out=folder, device="cpu", on_round=look)
    found["end"] = content(folder)
    return found


def laid_out(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, written in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(written)
    return folder


def cut(path: Path, lines: int) -> None:
    """Keeps so many lines of a file; a negative number is of those that go."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


def resumes_unchanged_or_refuses(folder: Path, **own: Any) -> str:
    """The refusal, after which every file must be as it was; empty where the run went on."""
    before, refusal = content(folder), ""
    try:
        resume(folder, **{"cohort": blob_cohort(), "device": "cpu"} | own)
    except InputError as error:
        refusal = str(error)
    assert not refusal or content(folder) == before
    assert "\n" not in refusal
    return refusal


LOST = [names for size in range(1, 6) for names in combinations(RECORDS, size)]


@pytest.mark.parametrize("lost", LOST, ids="+".join)
def test_a_finished_run_that_lost_files_is_never_started_over(
    lost: tuple[str, ...], stages: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """Only what the checkpoint and the ledger can give back is written again; no subset releases anew."""
    whole = stages["end"]
    folder = laid_out(tmp_path / "run", {name: c for name, c in whole.items() if name not in lost})
    refusal = resumes_unchanged_or_refuses(folder)
    if "checkpoint.pt" in lost:
        assert "its checkpoint is missing" in refusal
    elif "ledger.jsonl" in lost:
        assert "the ledger is missing" in refusal
    else:
        assert refusal == ""
        assert (folder / "ledger.jsonl").read_bytes() == whole["ledger.jsonl"]
        assert (folder / "model.safetensors").read_bytes() == whole["model.safetensors"]
        assert read_statement(folder).problems == ()


BACK = [names for size in range(1, 5) for names in combinations(RECORDS, size) if names != ("metrics.jsonl",)]


@pytest.mark.parametrize("back", BACK, ids="+".join)
def test_files_of_a_finished_run_that_were_put_back_are_noticed(
    back: tuple[str, ...], stages: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """Back to round two of four; then summary.json and the model were not there yet."""
    early, whole = stages["after 2"], stages["end"]
    mixed = {
        name: written
        for name in whole
        if (written := (early.get(name) if name in back else whole[name])) is not None
    }
    if "checkpoint.pt" in back:  # which is of no use without the hospitals' states
        mixed |= {name: written for name, written in early.items() if name.startswith("hospitals/")}
    folder = laid_out(tmp_path / "run", mixed)
    harmless = not {"ledger.jsonl", "checkpoint.pt"} & set(back)
    problems = read_statement(folder).problems
    refusal = resumes_unchanged_or_refuses(folder)
    if harmless:  # all releases are in the ledger, and the checkpoint gives the rest back
        assert (refusal, problems) == ("", ())
        assert (folder / "ledger.jsonl").read_bytes() == whole["ledger.jsonl"]
    elif set(back) >= {"checkpoint.pt", "summary.json", "model.safetensors"} and "ledger.jsonl" not in back:
        # As if killed after round 4's release: rounds three and four are released, and counted, again.
        assert refusal == ""
        events = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        updates = [event["round"] for event in events if event["released"] == "model update"]
        assert updates == [1, 2, 3, 4, 3, 4]
        assert read_statement(folder).redone == (3, 4)
    else:
        assert refusal
        assert problems


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_cut_ledger_of_a_finished_run_is_noticed(
    kept: int, stages: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """A hash chain cannot see that its end is cut off: the checkpoint remembers it, or ε would shrink."""
    folder = laid_out(tmp_path / "run", stages["end"])
    cut(folder / "ledger.jsonl", kept)
    assert "missing at the end" in resumes_unchanged_or_refuses(folder)


@pytest.mark.parametrize("lines", [1, 2])
def test_lines_cut_after_the_last_checkpoint_are_noticed(
    lines: int, stages: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """Round 3 is in ledger and metrics, the checkpoint is of round 2. One line: the round's clip quantile."""
    folder = laid_out(tmp_path / "run", stages["after 3"])
    cut(folder / "ledger.jsonl", -lines)
    assert read_statement(folder).problems
    assert "metrics.jsonl" in resumes_unchanged_or_refuses(folder)


def test_a_second_release_of_a_round_cannot_be_cut_off(
    stages: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """Round 3 was released, lost and released again: its second line is as much a release as its first."""
    folder = laid_out(tmp_path / "run", stages["after 3"])
    with pytest.raises(Killed):
        resume(folder, cohort=blob_cohort(), device="cpu", on_round=kill_after(3))
    assert read_statement(folder).redone == (3,)
    cut(folder / "ledger.jsonl", -2)
    refusal = resumes_unchanged_or_refuses(folder)
    assert "releases of round 3 that metrics.jsonl knows of are missing" in refusal


def test_a_resume_that_forgets_metrics_has_told_the_checkpoint_first(
    stages: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed just after round 3's line left metrics.jsonl: the checkpoint alone knows of its release."""
    folder = laid_out(tmp_path / "run", stages["after 3"])
    with monkeypatch.context() as patch:
        patch.setattr(_Run, "finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            resume(folder, cohort=blob_cohort(), device="cpu")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    cut(folder / "ledger.jsonl", -2)
    assert "the checkpoint knows of are missing" in resumes_unchanged_or_refuses(folder)


def _other_seed(folder: Path) -> None:
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 9"))


def _another_round(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"round": 3,', '"round": 4,'))


def _garbage(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"garbage\n")


@pytest.mark.parametrize(
    ("harm", "message", "own"),
    [
        (lambda folder: None, "", {}),
        (lambda folder: None, "another cohort", {"cohort": blob_cohort(images=21)}),
        (_other_seed, "another experiment", {}),
        (_another_round, "round 4", {}),
        (_garbage("metrics.jsonl"), "line 1: damaged", {}),
        (_garbage("ledger.jsonl"), "line 1: not a ledger entry", {}),
        (_garbage("checkpoint.pt"), "not a checkpoint", {}),
    ],
    ids=["in order", "images", "experiment", "another round", "metrics", "ledger", "checkpoint"],
)
def test_a_refused_resume_leaves_the_torn_line(
    harm: Callable[[Path], None],
    message: str,
    own: dict[str, Any],
    stages: dict[str, dict[str, bytes]],
    tmp_path: Path,
) -> None:
    folder = laid_out(tmp_path / "run", stages["after 3"])
    with (folder / "ledger.jsonl").open("a") as file:
        file.write('{"round": 4, "rel')
    harm(folder)
    refusal = resumes_unchanged_or_refuses(folder, **own)
    assert message in refusal
    assert bool(message) == bool(refusal)
    if not message:
        assert read_statement(folder).problems == ()
        assert not read_statement(folder).torn


def test_a_changed_model_is_noticed(stages: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    folder = laid_out(tmp_path / "run", stages["end"])
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    says = "model.safetensors is not the one that summary.json was written with"
    assert says in read_statement(folder).problems
    assert says in resumes_unchanged_or_refuses(folder)


def test_a_run_killed_before_its_first_checkpoint_starts(
    stages: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """Nothing can have been released then: an empty ledger, or none, beside experiment.toml."""
    for number, extra in enumerate(({}, {"ledger.jsonl": b""}, {"checkpoint.pt.part": b"PK"})):
        files = {"experiment.toml": stages["end"]["experiment.toml"]} | extra
        folder = laid_out(tmp_path / str(number), files)
        assert resume(folder, cohort=blob_cohort(), device="cpu").summary["rounds"] == 4


@pytest.mark.parametrize("kept", [0, 4], ids=["emptied", "two rounds"])
def test_a_ledger_cut_with_metrics_and_checkpoint_is_noticed_by_the_summary(
    kept: int, stages: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """`silodp privacy` of a run whose checkpoint was removed, as people do before they pass a folder on."""
    folder = laid_out(tmp_path / "run", stages["end"])
    (folder / "checkpoint.pt").unlink()
    assert read_statement(folder).problems == ()
    cut(folder / "ledger.jsonl", kept)
    cut(folder / "metrics.jsonl", kept // 2)
    assert "ledger.jsonl is not the one that summary.json was written with" in read_statement(folder).problems
