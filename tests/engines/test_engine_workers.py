"""Hospitals in processes of their own: the same run to the last bit, and nothing left behind."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same_files, killed_run
from processes import ended, until
from torch import Tensor, nn

from silodp import Cohort, Experiment, InputError, resume, train
from silodp.engines.in_process import InProcess
from silodp.engines.workers import Workers, workers_for
from silodp.messages import RoundPlan
from silodp.runs.build import build

CPU = torch.device("cpu")


def experiment(**changes: Any) -> Experiment:
    return Experiment(
        rounds=3, threads=1, model={"features": 2, "levels": 1}, local={"batch_size": 4},
        intermediaries={"rule": "fixed", "count": 2},
    ).change(**changes)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local__state": "kept", "server__optimizer": "dp2-rmsprop"},
        {"clipping__rule": "median"},
        {"privacy__noise_multiplier": 0.0, "clipping__rule": "none"},
        {"privacy__noise": "shared"},
    ],
    ids=str,
)
def test_the_same_run_whatever_the_number_of_processes(
    cohort: Cohort, tmp_path: Path, changes: dict[str, Any]
) -> None:
    results = [
        train(
            experiment(**changes), cohort=cohort, out=tmp_path / str(workers), workers=workers, device="cpu"
        )
        for workers in (1, 2, 3)
    ]
    first = results[0]
    for other in results[1:]:
        assert_same_files(other.folder, first.folder)
        assert other.test == first.test


def test_a_run_goes_on_with_another_number_of_processes(cohort: Cohort, tmp_path: Path) -> None:
    """Optimizer states are at the hospitals, in whichever process."""
    asked = experiment(local__state="kept", rounds=4)
    whole = train(asked, cohort=cohort, out=tmp_path / "whole", device="cpu")
    killed_run(asked, 2, cohort=cohort, out=tmp_path / "parts", workers=3)
    parts = resume(tmp_path / "parts", cohort=cohort, workers=2, device="cpu")
    assert_same_files(parts.folder, whole.folder)


class Odd(ValueError):
    """An exception that can be written to another process, but not read there."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


class Refuses(nn.Module):
    """A network that takes no image brighter than this."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 3, padding=1)
        self.most = most

    def forward(self, images: Tensor) -> Tensor:
        if images.max() > self.most:
            raise Odd(1, "too bright")
        return self.layer(images)  # type: ignore[no-any-return]


def test_a_hospital_that_fails_is_absent_and_takes_no_other_with_it(cohort: Cohort, tmp_path: Path) -> None:
    bright = cohort.hospitals[1]
    bright.train.images[:] = bright.train.images.abs() + 100
    network = Refuses(50)
    results = [
        train(
            experiment(model__kind="custom"), cohort=cohort, model=network, out=tmp_path / str(workers),
            workers=workers, device="cpu",
        )
        for workers in (1, 2)
    ]  # fmt: skip
    metrics = [(one.folder / "metrics.jsonl").read_text() for one in results]
    assert bright.name in metrics[1]
    assert_same_files(results[0].folder, results[1].folder)


def test_what_a_process_has_to_say_is_said_by_the_one_that_asks(
    cohort: Cohort, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One bright image: its intermediary counts as nothing, and somebody must hear of it."""
    cohort.hospitals[1].train.images[0] += 100
    asked = experiment(model__kind="custom", rounds=1)
    train(asked, cohort=cohort, model=Refuses(50), out=tmp_path / "run", workers=2, device="cpu")
    said = [one.getMessage() for one in caplog.records if "too bright" in one.getMessage()]
    assert len(said) == 1
    assert "1 of 2 intermediaries failed" in said[0]


def workers_of(cohort: Cohort, count: int = 2) -> Workers:
    engine = build(experiment(), cohort=cohort, workers=count, device="cpu").engine
    assert isinstance(engine, Workers)
    return engine


@pytest.mark.parametrize("workers", [1, 2])
def test_diagnostics_are_those_of_the_last_plan(workers: int, cohort: Cohort) -> None:
    """The λ of Eq. 2 by another round's norms would be no λ of this one."""
    parts = build(experiment(), cohort=cohort, workers=workers, device="cpu")
    engine, names = parts.engine, [one.name for one in cohort.hospitals]
    told = []
    for number, (asked, diagnose) in enumerate([(names, True), (names[:1], True), (names, False)], start=1):
        plan = RoundPlan(number, parts.model.values.clone(), 2, 0.5)
        assert [answer.hospital for answer in engine.train(plan, asked, diagnose=diagnose)] == asked
        told.append([*engine.diagnostics])
    engine.close()
    assert told == [names, names[:1], []]


def test_closing_ends_the_processes(cohort: Cohort) -> None:
    engine = workers_of(cohort)
    assert all(process.is_alive() for process in engine._processes)
    engine.close()
    until(lambda: all(ended(process.pid) for process in engine._processes), "the processes have ended")


def test_a_killed_process_ends_the_run_with_a_sentence(cohort: Cohort) -> None:
    engine = workers_of(cohort)
    pid = engine._processes[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="a process that trains hospitals has ended"):
        engine.evaluate(build(experiment(), cohort=cohort, device="cpu").model.values, "test", thorough=False)
    engine.close()


class Waits:
    """A hospital's place in an engine: waits for one file, then makes another and answers with much."""

    def __init__(self, name: str, images: int, awaited: Path | None, made: Path) -> None:
        self.name, self.parts = name, {"train": range(images)}
        self._awaited, self._made = awaited, made

    def evaluate(self, *_: Any, **__: Any) -> Tensor:
        until = time.monotonic() + 60
        while self._awaited and not self._awaited.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert not self._awaited or self._awaited.exists()
        self._made.touch()
        return torch.full((2**20,), len(self.parts["train"]))


def test_a_process_goes_on_while_this_one_trains(tmp_path: Path) -> None:
    """What it answers fills a pipe many times over."""
    small = [Waits(f"small {n}", n, None, tmp_path / str(n)) for n in range(1, 4)]
    large = Waits("large", 10, tmp_path / "3", tmp_path / "large")
    engine = Workers([large, *small], 2)  # type: ignore[list-item]
    found = engine.evaluate(torch.zeros(1), "test", thorough=False)
    engine.close()
    assert [int(scores[0]) for scores in found.values()] == [10, 1, 2, 3]  # type: ignore[index]
    assert list(found) == ["large", "small 1", "small 2", "small 3"]


def test_processes_do_not_outlive_the_one_that_asks(cohort: Cohort, tmp_path: Path) -> None:
    """Killed with SIGKILL it cannot tell them; that the pipe is closed does."""
    told = tmp_path / "pids"
    parent = os.fork()
    if parent == 0:
        engine = workers_of(cohort, 3)
        told.write_text(" ".join(str(process.pid) for process in engine._processes))
        time.sleep(600)
        os._exit(0)
    until(lambda: told.exists() and len(told.read_text().split()) == 2, "the processes have begun")
    pids = [int(word) for word in told.read_text().split()]
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    until(lambda: all(map(ended, pids)), "the processes have ended")


def test_how_many(cohort: Cohort) -> None:
    cores = len(os.sched_getaffinity(0))
    assert workers_for(0, 1, 100, CPU) == cores
    assert workers_for(0, 1, 1, CPU) == 1
    assert workers_for(7, 1, 3, CPU) == 3
    assert workers_for(0, 4, 100, CPU) == 1
    assert workers_for(0, 1, 100, torch.device("cuda")) == 1
    with pytest.raises(InputError, match=r"--workers 2: .*threads = 4; set threads=1"):
        workers_for(2, 4, 100, CPU)
    with pytest.raises(InputError, match=r"--workers 2: .*train on CPUs"):
        workers_for(2, 1, 100, torch.device("cuda"))
    one = build(experiment(), cohort=cohort, device="cpu").engine
    assert type(one) is InProcess
