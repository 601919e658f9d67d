"""Each cell once, whoever asks for it; what fails or is killed loses nothing else."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import command_line, forked, succeed
from counted_work import note
from made_up_runs import SUMMARY, made_up

from silodp import InputError
from silodp.runs.folder import RunFolder
from silodp.studies.output import Results
from silodp.studies.planning import make_plan
from silodp.studies.running import default_jobs, run_study
from silodp.studies.study import Cell, CellRun, Plan, Study


def naming(_: Plan, found: Sequence[CellRun]) -> Results:
    return Results(" ".join(str(one.summary["seed"]) for one in found), found)


def written(out: Path, name: str = "counting") -> str:
    """The seeds of which table.md tells."""
    return (out / f"{name}-smoke" / "table.md").read_text().splitlines()[0].removeprefix("# ")


def counting(*seeds: int, levels: Sequence[float] = (0.5,)) -> Study:
    def cells(plan: Plan) -> list[Cell]:
        work = partial(note, summary=SUMMARY)
        return [plan.cell(z, True, seed, work=work) for z in levels for seed in seeds]

    return Study("counting", "counts", "prostate", cells, naming)


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
    assert written(tmp_path, "another") == "0 1 2"


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


def test_a_change_that_some_cells_have_no_place_for_is_taken(tmp_path: Path) -> None:
    """Runs without privacy clip nothing, so they have no C; a change that no cell heeds is refused."""
    changed = make_plan("prostate", "smoke", changes=["clipping.bound=3"])
    run_study(counting(0, levels=(0.0, 0.5)), changed, tmp_path, jobs=1)
    with pytest.raises(InputError, match=r"--set clipping\.bound: counting has its own in every run"):
        run_study(counting(0, levels=(0.0,)), changed, tmp_path, jobs=1)


def test_the_method_is_the_authors_and_each_cell_says_what_it_changes(plan: Plan) -> None:
    with_, without = plan.cell(0.5, True, 3).experiment, plan.cell(0.5, False, 3).experiment
    assert (with_.intermediaries.rule, with_.clipping.rule, with_.seed) == ("adaptive", "median", 3)
    assert (without.intermediaries.rule, without.intermediaries.count) == ("fixed", 1)
    assert without.clipping.rule == "median"
    plain = plan.cell(0.0, True, 0)
    assert (plain.experiment.is_private, plain.experiment.clipping.rule) == (False, "none")
    assert plain.columns["intermediaries"] == "without"  # nothing to harmonise without noise


def test_a_failure_that_is_explained_needs_no_traceback(tmp_path: Path, plan: Plan) -> None:
    with pytest.raises(
        InputError, match=r"1 of 2 cells failed \(fedavg-z0.5-split-seed13: seed = 13: bad luck\); the others"
    ):
        run_study(counting(0, 13), plan, tmp_path, jobs=1)
    assert not (tmp_path / "counting-smoke" / "errors.txt").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_fails_stops_no_other(tmp_path: Path, plan: Plan, jobs: int) -> None:
    """Foreseen or not, in this process or in others; once it is mended, the study goes on."""
    seen: list[tuple[str, int, int]] = []
    study, errors = counting(0, 13, 1, 14, 2), tmp_path / "counting-smoke" / "errors.txt"
    with pytest.raises(
        InputError, match=r"2 of 5 cells failed .*; the traceback is in .*errors\.txt"
    ) as caught:
        run_study(study, plan, tmp_path, jobs=jobs, device="cpu", on_cell=lambda *cell: seen.append(cell))
    assert "fedavg-z0.5-split-seed13: seed = 13: bad luck" in str(caught.value)
    assert "seed14: ZeroDivisionError" in str(caught.value)
    assert seen == [("cells", done, 5) for done in range(4)]  # a bar from the start
    assert errors.read_text().startswith("fedavg-z0.5-split-seed14-")
    assert "in note\n" in errors.read_text()
    assert not (tmp_path / "counting-smoke" / "table.md").exists()
    processes = {path.read_text().split()[0] for path in tmp_path.glob("runs/*/times")}
    assert (str(os.getpid()) in processes) == (jobs == 1)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 3
    for seed in (13, 14):  # somebody mends them
        (failed,) = tmp_path.glob(f"runs/fedavg*-seed{seed}-*")
        (failed / "summary.json").write_text(json.dumps(SUMMARY | {"seed": seed}))
    run_study(study, plan, tmp_path, jobs=jobs, device="cpu", resume=True)
    assert written(tmp_path) == "0 13 1 14 2"
    assert not errors.exists()


def test_a_started_study_asks_for_resume_and_for_the_same_settings(tmp_path: Path, plan: Plan) -> None:
    run_study(counting(0), plan, tmp_path, jobs=1)
    with pytest.raises(InputError, match="--resume"):
        run_study(counting(0), plan, tmp_path, jobs=1)
    with pytest.raises(InputError, match="other settings"):
        run_study(counting(1), plan, tmp_path, jobs=1, resume=True)
    for content in ("[", "[]", "{}", '{"cells": 3}'):
        (tmp_path / "counting-smoke" / "study.json").write_text(content)
        with pytest.raises(InputError, match=r"study\.json: .*; remove it or give another --out"):
            run_study(counting(0), plan, tmp_path, jobs=1, resume=True)


def test_a_started_study_may_grow(tmp_path: Path, plan: Plan) -> None:
    """From --only to all, or to more seeds; what ran is kept, and study.json has the later command."""
    run_study(counting(0, 1), plan, tmp_path, jobs=1, only="seed1")
    later = replace(plan, command="silodp study counting")
    run_study(counting(0, 1, 2), later, tmp_path, jobs=1, resume=True)
    assert sorted(times(tmp_path).values()) == [1, 1, 1]
    assert written(tmp_path) == "0 1 2"
    content = json.loads((tmp_path / "counting-smoke" / "study.json").read_text())
    assert content["command"] == "silodp study counting"
    assert len(content["cells"]) == 3
    with pytest.raises(InputError, match="other settings"):  # fewer: the files would say less than before
        run_study(counting(0, 1), plan, tmp_path, jobs=1, resume=True)


def test_what_cannot_work_claims_no_folder(tmp_path: Path, plan: Plan) -> None:
    with pytest.raises(InputError, match="--device tpu: choose"):
        run_study(counting(0), plan, tmp_path / "out", jobs=1, device="tpu")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"--out .*file: .*file is a file, not a folder; give another --out"):
        run_study(counting(0), plan, tmp_path / "file", jobs=1)


@pytest.mark.parametrize("content", ["{", "{}", "[]", ""])
def test_a_damaged_summary_is_named_before_anything_trains(tmp_path: Path, plan: Plan, content: str) -> None:
    cell = counting(0).cells(plan)[0]
    path = tmp_path / "runs" / cell.folder_name / "summary.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    says = r"seed0-\w+/summary.json: (damaged|experiment is missing); remove this file and go on with"
    with pytest.raises(InputError, match=says):
        run_study(counting(1, 0), plan, tmp_path, jobs=1)
    assert not times(tmp_path)
    path.unlink()
    run_study(counting(1, 0), plan, tmp_path, jobs=1, resume=True)


def test_only_names_what_there_is(tmp_path: Path, plan: Plan) -> None:
    run_study(counting(0, 1), plan, tmp_path / "one", jobs=1, only="seed1")
    assert written(tmp_path / "one") == "1"
    with pytest.raises(InputError, match=r"fedavg-z0\.5-split-seed0, fedavg-z0\.5-split-seed1"):
        run_study(counting(0, 1), plan, tmp_path, jobs=1, only="fedyogi")


def test_cores_are_shared_out_where_a_cell_takes_one(plan: Plan) -> None:
    assert default_jobs(plan, "cpu") == len(os.sched_getaffinity(0))
    two = replace(plan, base=plan.base.change(threads=2))
    assert default_jobs(two, "cpu") == 1


def test_a_missing_epsilon_is_no_guarantee(tmp_path: Path, plan: Plan) -> None:
    found = made_up(tmp_path, plan.cell(0.5, True, 0), [{}], epsilon={"hospital": None}, test={"dice": None})
    assert found.epsilon("hospital") == float("inf")
    assert found.test("dice") != found.test("dice")


def test_a_run_of_an_older_format_is_told_in_one_sentence(tmp_path: Path, plan: Plan) -> None:
    found = made_up(tmp_path, plan.cell(0.5, True, 0), [{}])
    (found.folder / "experiment.toml").write_text("rounds = 1\n")  # none said its format at first
    with pytest.raises(InputError, match="a run of format 1, and this silodp reads 3; use the version"):
        _ = found.summary


def killed_in_its_second_run(out: Path, words: list[str]) -> None:
    """A study that is killed when two rounds of its second run are recorded, however fast it is."""
    save = RunFolder.save_checkpoint

    def save_and_die(self: RunFolder, *arguments: Any, **more: Any) -> None:
        save(self, *arguments, **more)
        rounds = [len(path.read_text().splitlines()) for path in out.glob("runs/*/metrics.jsonl")]
        if len(rounds) == 2 and min(rounds) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    RunFolder.save_checkpoint = save_and_die  # type: ignore[method-assign]
    command_line(*words)


def test_a_killed_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """SIGKILL in the middle: finished runs stay as they are, the one at work goes on from its checkpoint."""
    words = [
        "study", "table1-prostate", "--scale", "smoke", "--only", "fedavg", "--jobs", "1", "--device", "cpu",
        "--out", str(tmp_path), "--set", "rounds=3", "--set", "checkpoint_every=1", "--set", "model.levels=1",
    ]  # fmt: skip
    process = forked(killed_in_its_second_run, tmp_path, words)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}
    assert len(before) == 1
    done = succeed(*words, "--resume")
    assert "cells: 3/3" in done.stderr
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}
    assert len(after) == 3
    assert before.items() <= after.items()
    for path in tmp_path.glob("runs/*/metrics.jsonl"):
        assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert "| DP-FedAvg | 0.5 |" in done.stdout
