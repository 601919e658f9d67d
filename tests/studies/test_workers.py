"""A study that is killed leaves nobody at work; two at once in one folder both end well."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import command_line, forked, in_a_process, succeed

from silodp.studies import study_named, study_names
from silodp.studies.planning import make_plan


def study_and_say(out: Path, said: Path, *words: object) -> None:
    done = command_line("study", *words, "--scale", "smoke", "--device", "cpu", "--out", out)
    said.write_text(done.stderr)
    sys.exit(done.returncode)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def at_work(out: Path) -> list[int]:
    """Processes that have a file of a run open: each holds the run's lock."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            files = (
                {os.readlink(file) for file in (process / "fd").iterdir()}
                if process.name.isdigit()
                else set()
            )
        except OSError:
            continue
        if any(file.startswith(str(out / "runs")) for file in files):
            found.append(int(process.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and Linux to end the workers")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_study_that_is_ended_leaves_nobody_training(tmp_path: Path, sent: signal.Signals) -> None:
    """Upon SIGKILL it cannot end its workers itself."""
    words = ("figure2a", "--jobs", "2", "--set", "rounds=5000")
    study = forked(study_and_say, tmp_path, tmp_path / "said", *words)
    wait_until(lambda: len(at_work(tmp_path)) == 2 or not study.is_alive())
    assert study.is_alive()
    assert study.pid is not None
    assert study.pid not in at_work(tmp_path)
    os.kill(study.pid, sent)
    study.join(60)
    wait_until(lambda: not at_work(tmp_path))
    assert not list(tmp_path.glob("runs/*/summary.json"))
    if sent == signal.SIGKILL:
        assert study.exitcode == -sent
    else:
        assert study.exitcode == 130
        said = (tmp_path / "said").read_text()
        assert said.endswith("silodp: stopped; go on with the same command and --resume\n")
        assert "Traceback" not in said


def test_two_studies_at_once_share_their_runs(tmp_path: Path) -> None:
    """Both need the same two runs and start at the same time: each is trained once."""
    words = ("--scale", "smoke", "--device", "cpu", "--out", tmp_path, "--jobs", "1", "--set", "rounds=5")
    both = {name: forked(succeed, "study", name, *words) for name in ("figure2a", "figure2b")}
    for name, study in both.items():
        study.join(240)
        assert study.exitcode == 0
        assert (tmp_path / f"{name}-smoke" / "table.md").exists()
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2
    for path in tmp_path.glob("runs/*/metrics.jsonl"):
        assert len(path.read_text().splitlines()) == 5


def test_the_list_and_the_help() -> None:
    listed = command_line("study").stdout.splitlines()
    numbers = {line.split()[0]: int(line.split()[1]) for line in listed[1:-1] if line[0] != " "}
    assert list(numbers) == study_names()
    assert numbers["table1-prostate"] == 28
    for name, number in numbers.items():
        study = study_named(name)
        cells = study.cells(make_plan(study.task, "small", bases=study.bases))
        assert len({cell.folder_name for cell in cells}) == number, name
    told = in_a_process("study", "--help").stdout
    assert "silodp study table1-prostate --scale smoke" in told
