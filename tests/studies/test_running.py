"""Each cell once, whoever asks for it; what fails or is killed loses nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silodp import InputError
from silodp.experiment import Experiment
from silodp.studies.planning import make_plan
from silodp.studies.running import default_jobs, run_study
from silodp.studies.study import Cell, Found, Plan, Study


def note(experiment: Experiment, folder: Path, device: str) -> None:
    """A cell's work that counts how often it was done, and by which process."""
    folder.mkdir(exist_ok=True)
    with (folder / "times").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if experiment.seed == 13:
        raise InputError("seed = 13: bad luck")
    (folder / "summary.json").write_text(json.dumps({"seed": experiment.seed, "device": device}))


def write_seeds(out: Path, plan: Plan, found: Any) -> None:
    (out / "table.md").write_text(" ".join(str(one.summary["seed"]) for one in found))


def counting(*seeds: int) -> Study:
    def cells(plan: Plan) -> list[Cell]:
        return [plan.cell(0.5, True, seed, work=note) for seed in seeds]

    return Study("counting", "counts", "prostate", cells, write_seeds)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan("prostate", "smoke")


def times(out: Path) -> dict[str, int]:
    return {path.parent.name: len(path.read_text().split()) for path in out.glob("runs/*/times")}


def test_a_cell_that_is_done_is_not_run_again_by_this_or_another_study(tmp_path: Path, plan: Plan) -> None:
    run_study(counting(0, 1), plan, tmp_path, jobs=1)
    run_study(counting(0, 1), plan, tmp_path, jobs=1, resume=True)
    run_study(replace(counting(0, 1, 2), name="another"), plan, tmp_path, jobs=1)
    assert sorted(times(tmp_path).values()) == [1, 1, 1]
    assert (tmp_path / "another-smoke" / "table.md").read_text() == "0 1 2"


def test_other_settings_are_another_cell(plan: Plan) -> None:
    """All but the name: a run with other settings must never be taken for this one."""
    base = plan.cell(0.5, True, 0)
    assert base.folder_name == plan.cell(0.5, True, 0).folder_name
    others = [
        plan.cell(0.5, True, 1),
        plan.cell(0.3, True, 0),
        plan.cell(0.5, False, 0),
        plan.cell(0.5, True, 0, optimizer="fedadam"),
        plan.cell(0.5, True, 0, changes={"rounds": 7}),
        plan.cell(0.5, True, 0, changes={"cohort.slices": 49}),
    ]
    assert len({base.folder_name, *(other.folder_name for other in others)}) == 7
    renamed = replace(base, experiment=base.experiment.change(name="renamed", description="other words"))
    assert renamed.folder_name.rsplit("-", 1)[1] == base.folder_name.rsplit("-", 1)[1]


def test_the_method_is_the_authors_and_each_cell_says_what_it_changes(plan: Plan) -> None:
    with_, without = plan.cell(0.5, True, 3).experiment, plan.cell(0.5, False, 3).experiment
    assert (with_.intermediaries.rule, with_.clipping.rule, with_.seed) == ("adaptive", "median", 3)
    assert (without.intermediaries.rule, without.intermediaries.count) == ("fixed", 1)
    assert without.clipping.rule == "median"
    plain = plan.cell(0.0, True, 0)
    assert (plain.experiment.is_private, plain.experiment.clipping.rule) == (False, "none")
    assert plain.columns["intermediaries"] == "without"  # nothing to harmonise without noise


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_cell_that_fails_stops_no_other(tmp_path: Path, plan: Plan, jobs: int) -> None:
    seen: list[tuple[str, int, int]] = []
    with pytest.raises(
        InputError, match=r"1 of 3 cells failed \(fedavg-z0.5-split-seed13: seed = 13: bad luck\)"
    ):
        run_study(counting(0, 13, 2), plan, tmp_path, jobs=jobs, on_cell=lambda *cell: seen.append(cell))
    assert seen == [("cells", 1, 3), ("cells", 2, 3)]
    assert not (tmp_path / "counting-smoke" / "table.md").exists()
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2


def test_several_cells_at_a_time_run_in_processes_of_their_own(tmp_path: Path, plan: Plan) -> None:
    run_study(counting(0, 1, 2, 3), plan, tmp_path, jobs=2, device="cpu")
    processes = {path.read_text().split()[0] for path in tmp_path.glob("runs/*/times")}
    assert str(os.getpid()) not in processes
    assert (tmp_path / "counting-smoke" / "table.md").read_text() == "0 1 2 3"


def test_a_started_study_asks_for_resume_and_for_the_same_settings(tmp_path: Path, plan: Plan) -> None:
    run_study(counting(0), plan, tmp_path, jobs=1)
    with pytest.raises(InputError, match="--resume"):
        run_study(counting(0), plan, tmp_path, jobs=1)
    with pytest.raises(InputError, match="other settings"):
        run_study(counting(1), plan, tmp_path, jobs=1, resume=True)
    (tmp_path / "counting-smoke" / "study.json").write_text("[")
    with pytest.raises(InputError, match=r"study\.json: not a study"):
        run_study(counting(0), plan, tmp_path, jobs=1, resume=True)


def test_only_names_what_there_is(tmp_path: Path, plan: Plan) -> None:
    run_study(counting(0, 1), plan, tmp_path / "one", jobs=1, only="seed1")
    assert (tmp_path / "one" / "counting-smoke" / "table.md").read_text() == "1"
    with pytest.raises(InputError, match=r"fedavg-z0\.5-split-seed0, fedavg-z0\.5-split-seed1"):
        run_study(counting(0, 1), plan, tmp_path, jobs=1, only="fedyogi")


def test_cores_are_shared_out_where_a_cell_takes_one(plan: Plan) -> None:
    assert default_jobs(plan, "cpu") == len(os.sched_getaffinity(0))
    two = replace(plan, base=plan.base.change(threads=2))
    assert default_jobs(two, "cpu") == 1


def test_a_missing_epsilon_is_no_guarantee(tmp_path: Path, plan: Plan) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    summary = {"epsilon": {"hospital": None}, "test": {"last": {"mean": {"dice": None}}}}
    (folder / "summary.json").write_text(json.dumps(summary))
    found = Found(plan.cell(0.5, True, 0), folder)
    assert found.epsilon("hospital") == float("inf")
    assert found.test("dice") != found.test("dice")


def test_a_killed_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """SIGKILL in the middle: finished runs stay as they are, the one at work goes on from its checkpoint."""
    command = [
        sys.executable, "-W", "ignore", "-c", "from silodp.cli import main; main()", "study",
        "table1-prostate", "--scale", "smoke", "--only", "fedavg", "--jobs", "1", "--device", "cpu",
        "--out", str(tmp_path), "--set", "rounds=6", "--set", "checkpoint_every=1",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120

    def second_run_is_at_work() -> bool:
        rounds = [len(path.read_text().splitlines()) for path in tmp_path.glob("runs/*/metrics.jsonl")]
        return len(rounds) == 2 and min(rounds) >= 2

    while not second_run_is_at_work():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}
    assert len(before) == 1
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=True)
    assert "cells: 3/3" in done.stderr
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}
    assert len(after) == 3
    assert before.items() <= after.items()
    for path in tmp_path.glob("runs/*/metrics.jsonl"):
        assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2, 3, 4, 5, 6]
    assert "| DP-FedAvg | 0.5 |" in done.stdout
