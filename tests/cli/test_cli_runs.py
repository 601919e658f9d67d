"""`silodp runs`, and how tables look in terminals that are narrow or know ASCII only."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Killed, blob_cohort, command_line, kill_after
from PIL import Image

from silodp import Experiment, train
from silodp.cli import main
from silodp.cli.display import show_comparison, show_result
from silodp.cli.terminal import prepare_streams
from silodp.runs.listing import list_runs
from silodp.runs.result import Result
from silodp.runs.wording import show_epsilon

TREE: dict[str, Any] = {
    "name": "tiny", "rounds": 3, "model": {"features": 2, "levels": 1}, "clipping": {"bound": 0.5},
    "intermediaries": {"rule": "fixed", "count": 6}, "local": {"learning_rate": 0.01},
}  # fmt: skip


ATTACK = (
    "attack prostate-small --set cohort.slices=40 --set cohort.image_size=32 --set model.features=2 "
    "--set model.levels=1 --images 1 --iterations 1 --out {folder}/../a"
)


def draw_scans(folder: Path) -> None:
    noise = np.random.default_rng(0)
    for place in ("Aarhus/ill", "Aarhus/well", "Bern/ill", "Bern/well"):
        (folder / place).mkdir(parents=True)
        for number in range(6):
            image = Image.fromarray(noise.integers(0, 255, (16, 16)).astype(np.uint8))
            image.save(folder / place / f"{number}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in every state, one of them in a folder of its own as `silodp demo` leaves them."""
    folder = tmp_path_factory.mktemp("all") / "runs"

    def run(name: str, changes: dict[str, Any], **more: Any) -> None:
        tree = TREE | changes
        train(Experiment.build(tree), cohort=blob_cohort(), out=folder / name, device="cpu", **more)

    run("tiny-2", {})
    run("tiny-10", {"rounds": 9, "budget": {"epsilon": 500.0}})
    with pytest.raises(Killed):
        run("both/killed", {"intermediaries": {"rule": "adaptive"}}, on_round=kill_after(2))
    for name in ("harmed", "empty", "older"):
        shutil.copytree(folder / "tiny-2", folder / name)
    (folder / "harmed/ledger.jsonl").write_text("garbage\n")
    (folder / "empty/experiment.toml").unlink()
    (folder / "older/experiment.toml").write_text("format = 1\n")
    (folder / "notes").mkdir()
    draw_scans(folder.parent / "scans")
    return folder


def test_every_run_is_listed_with_its_state(folder: Path) -> None:
    done = command_line("runs", cwd=folder.parent, COLUMNS="120")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    names = ["both/killed", "empty", "harmed", "older", "tiny-2", "tiny-10"]
    assert [name for name in rows if name in names] == names
    summary = json.loads((folder / "tiny-2/summary.json").read_text())
    epsilon, dice = summary["epsilon"], summary["test"]["last"]["mean"]["dice"]
    shown = [show_epsilon(epsilon["hospital"]), show_epsilon(epsilon["intermediary"])]
    assert rows["tiny-2"].split()[1:6] == ["finished", *shown, "dice", f"{dice:.3f}"]
    assert "stopped by budget" in rows["tiny-10"]
    assert "unfinished at round 2 of 3" in rows["both/killed"]
    assert "*" in rows["both/killed"]  # ε does not cover what the rule reads
    assert "(val.)" in rows["both/killed"]
    assert rows["harmed"].split()[1] == rows["empty"].split()[1] == "damaged"
    assert rows["older"].split()[1] == "other-format"
    assert "ledger.jsonl, line 1: not a ledger entry; restore the file" in done.stdout


def test_as_json(folder: Path) -> None:
    listed = json.loads(command_line("runs", folder, "--json").stdout)
    found = {Path(one["folder"]).name: one for one in listed}
    assert {name: one["state"] for name, one in found.items()} == {
        "tiny-2": "finished", "tiny-10": "stopped", "killed": "unfinished", "harmed": "damaged",
        "empty": "damaged", "older": "other-format",
    }  # fmt: skip
    assert (found["killed"]["rounds"], found["killed"]["planned"]) == (2, 3)
    assert found["tiny-2"]["epsilon"] == json.loads((folder / "tiny-2/summary.json").read_text())["epsilon"]
    assert "restore" in found["harmed"]["problem"]
    assert found["tiny-2"]["when"][:2] == "20"


def test_epsilon_is_that_of_the_ledger_where_other_files_lag_behind(folder: Path, tmp_path: Path) -> None:
    """Killed between a release and its line in metrics.jsonl: the release is made."""
    shutil.copytree(folder / "both/killed", tmp_path / "run")
    (whole,) = list_runs([tmp_path / "run"])
    path = tmp_path / "run/metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    (found,) = list_runs([tmp_path])
    assert (found.rounds, found.state) == (1, "unfinished")
    assert found.epsilon is not None
    assert whole.epsilon is not None
    assert found.epsilon["hospital"] == pytest.approx(whole.epsilon["hospital"])


def test_folders_are_named_or_missing(folder: Path, tmp_path: Path) -> None:
    one = command_line("runs", folder / "tiny-2", folder / "both", COLUMNS="200").stdout
    assert str(folder / "both/killed") in one
    assert "tiny-10" not in one
    assert "no runs in runs; start one" in command_line("runs", cwd=tmp_path).stdout
    assert json.loads(command_line("runs", "--json", cwd=tmp_path).stdout) == []
    done = command_line("runs", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nowhere: no such folder" in done.stderr


NARROW = ["40", "48", "60"]


@pytest.mark.parametrize("columns", NARROW)
def test_epsilon_is_never_cut_in_a_narrow_terminal(
    columns: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    summary = json.loads((folder / "tiny-2/summary.json").read_text())
    both = [show_epsilon(summary["epsilon"][unit]) for unit in ("hospital", "intermediary")]
    assert len(both[0]) >= 5
    swap = show_epsilon(summary["epsilon"]["replace_one"]["hospital"])
    listed = command_line("runs", folder, COLUMNS=columns).stdout
    told = command_line("privacy", folder / "tiny-2", COLUMNS=columns).stdout
    result = train(Experiment.build(TREE), cohort=blob_cohort(), out=tmp_path / "run", device="cpu")
    monkeypatch.setenv("COLUMNS", columns)
    show_comparison({"with intermediaries": result, "without privacy": result})
    compared = capsys.readouterr().out
    for text, figures in ((listed, both), (compared, both), (told, [both[0], swap])):
        (row, *_) = [line for line in text.splitlines() if figures[0] in line.split()]
        assert figures[1] in row.split()
        assert "hospital" in text
    for line in listed.splitlines()[:8]:
        assert len(line) <= int(columns)
    assert f"round 3: {both[0]} / {both[1]}" in " ".join(told.split())


def in_ascii(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> str:
    out, errors = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(errors, encoding="ascii"))
    work()
    sys.stdout.flush()
    sys.stderr.flush()
    assert b"Traceback" not in errors.getvalue()
    return out.getvalue().decode("ascii")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("runs {folder}", "eps for a"),
        ("privacy {folder}/tiny-2", "eps add-or-"),
        ("privacy --noise-multiplier 1 --hospitals 6", "delta 0.1"),
        ("presets", "prostate-small"),
        ("settings", "privacy.noise_multiplier"),
        ("study", "table1-prostate"),
        ("audit --runs 20 --rounds 1 --hospitals 2", "shown >="),
        ("data check {folder}/../scans", "hospital"),
        (ATTACK, "view"),
        ("--help", "Put eps to the test"),
    ],
    ids=lambda value: value.split()[0],
)
def test_tables_on_an_ascii_terminal(
    command: str, shown: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["silodp", *(word.format(folder=folder) for word in command.split())])
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))

    def work() -> None:
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in (0, None)

    text = in_ascii(monkeypatch, work)
    assert shown in text
    assert "\\u" not in text
    frames = {len(line) for line in text.splitlines() if line.startswith(("|", "+")) and command != "--help"}
    assert len(frames) <= 1  # what stands in words is as wide as it is drawn


@pytest.mark.parametrize(
    "show", [show_result, lambda result: show_comparison({"one": result})], ids=["run", "demo"]
)
def test_the_end_of_a_run_or_of_the_demo_on_an_ascii_terminal(
    show: Callable[[Result], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = train(Experiment.build(TREE), cohort=blob_cohort(), out=tmp_path / "run[/x]", device="cpu")
    text = in_ascii(monkeypatch, lambda: (prepare_streams(), show(result)))
    assert "eps for a" in text
    assert "run[/x]" in text
    assert "\\u" not in text
