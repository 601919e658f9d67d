"""Hospitals that share nothing but files: whoever answers for one, the run is that of one process."""

import json
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from conftest import blob_cohort, command_line
from safetensors.torch import load_file

from silodp import Cohort, Experiment, build, resume, train
from silodp.engines.in_process import InProcess
from silodp.engines.transport import Delivery
from silodp.errors import InputError
from silodp.hospital import Hospital
from silodp.messages import RoundPlan
from silodp.privacy.ledger import read_ledger
from silodp.runs import cluster, cluster_hospital
from silodp.runs.cluster import Cluster, ClusterEngine


class Forgetful:
    """A transport over two processes, as it were, which answer in turn; the last sent comes first.

    A message that `problem` has something against is lost; nothing ever is, by default.
    """

    def __init__(self, problem: Callable[[str, int], str] = lambda hospital, number: "") -> None:
        self._arrived: deque[Delivery] = deque()
        self._problem, self._sent = problem, 0
        self._actors = [lru_cache(maxsize=1)(cluster_hospital._site.__wrapped__) for _ in range(2)]
        self.closed = False

    def connected(self) -> frozenset[str]:
        return frozenset()

    def send(self, hospital: str, message: bytes) -> str:
        assert json.loads(message.partition(b"\n")[0])["hospital"] == hospital
        self._sent += 1
        if problem := self._problem(hospital, self._sent):
            self._arrived.appendleft(Delivery(str(self._sent), None, problem))
        else:
            with mock.patch.object(cluster_hospital, "_site", self._actors[self._sent % 2]):
                self._arrived.appendleft(Delivery(str(self._sent), cluster_hospital.answer(message)))
        return str(self._sent)

    def receive(self, timeout: float) -> Delivery | None:
        return self._arrived.popleft() if self._arrived else None

    def forget(self, ticket: str) -> None:
        raise AssertionError("nobody is given up")

    def close(self) -> None:
        self.closed = True


class Spread(Cluster):
    """Over a `Forgetful`."""

    def __init__(self, transport: Forgetful | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "transport", transport or Forgetful())

    def engine(self, experiment: Any, cohort: Any, place: torch.device) -> ClusterEngine:
        return ClusterEngine(self.transport, experiment, cohort, "cpu")  # type: ignore[attr-defined]


@pytest.fixture
def tiny(experiment: Experiment) -> Experiment:
    return experiment.change(threads=1, rounds=4, diagnostics=False)


def refuse_different(here: Path, there: Path) -> None:
    one, other = (load_file(folder / "model.safetensors") for folder in (here, there))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert read_ledger(here / "ledger.jsonl").events == read_ledger(there / "ledger.jsonl").events


CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "not private": {"privacy__noise_multiplier": 0.0},
    "kept states": {"local__state": "kept", "clipping__rule": "quantile", "checkpoint_every": 3},
    "shared noise": {"privacy__noise": "shared"},
    "some hospitals": {"participation": {"rule": "poisson", "rate": 0.5}, "local__state": "kept"},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_the_model_and_the_ledger_are_those_of_one_process(
    changes: dict[str, Any], tiny: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    asked, transport = tiny.change(**changes), Forgetful()
    here = train(asked, cohort=cohort, out=tmp_path / "here", device="cpu")
    there = train(asked, cohort=cohort, out=tmp_path / "there", device="cpu", engine=Spread(transport))
    refuse_different(here.folder, there.folder)
    assert there.summary["test"] == here.summary["test"]
    assert transport.closed
    assert sorted(path.name for path in there.folder.iterdir()) == sorted(
        path.name for path in here.folder.iterdir()
    )


@pytest.mark.parametrize(
    ("first", "second", "after"),
    [("there", "there", 1), ("there", "there", 3), ("here", "there", 2), ("there", "here", 3)],
)
def test_a_run_that_was_killed_goes_on_as_if_nothing_had_been(
    first: str, second: str, after: int, tiny: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """On the engine that it began on, or on the other one."""
    engines: dict[str, Any] = {"here": InProcess, "there": Spread()}
    kept = tiny.change(local__state="kept", clipping__rule="quantile", checkpoint_every=2)
    whole = train(kept, cohort=cohort, out=tmp_path / "whole", device="cpu")

    def kill(record: Any) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(kept, cohort=cohort, out=tmp_path / "run", device="cpu", engine=engines[first], on_round=kill)
    resume(tmp_path / "run", cohort=cohort, device="cpu", engine=engines[second])
    refuse_different(whole.folder, tmp_path / "run")


def test_a_round_redone_has_the_same_secret_shares_of_noise(
    tiny: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    shared = tiny.change(privacy__noise="shared", privacy__entropy="system")
    answers = []
    for _ in range(2):  # the second is a run that was killed in round one, and is resumed
        parts = build(shared, cohort=cohort, device="cpu", engine=Spread())
        events = parts.federation.mechanism.events(1, 2, 0.5, False)
        start = parts.first_state().parameters
        plan = RoundPlan(1, start, 2, 0.5, events=events, model=parts.model.identity)
        parts.engine.save_states(tmp_path / "hospitals", 0)
        answers.append([one.numbers for one in parts.engine.train(plan, ["hospital-0", "hospital-1"])])
    assert all(torch.equal(one, other) for one, other in zip(*answers, strict=True))
    assert not torch.equal(*answers[0])


def test_a_lost_message_costs_nothing_but_time(
    tiny: Experiment, cohort: Cohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PAUSES", (0.0, 0.0))
    kept = tiny.change(local__state="kept")
    lossy = Forgetful(lambda hospital, number: "its actor ended" if number % 3 == 1 else "")
    here = train(kept, cohort=cohort, out=tmp_path / "here", device="cpu")
    there = train(kept, cohort=cohort, out=tmp_path / "there", device="cpu", engine=Spread(lossy))
    refuse_different(here.folder, there.folder)


def test_a_hospital_that_kills_every_actor_is_absent(
    tiny: Experiment,
    cohort: Cohort,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cluster, "PAUSES", (0.0, 0.0))
    lines: list[Any] = []
    deadly = Forgetful(lambda hospital, number: "its actor ended" * (hospital == "hospital-1" and number < 6))
    train(
        tiny, cohort=cohort, out=tmp_path / "run", device="cpu", engine=Spread(deadly), on_round=lines.append
    )
    assert [list(line["absent"]) for line in lines] == [["hospital-1"], [], [], []]
    assert "round 1: hospital-1 failed: no actor could answer (its actor ended)" in caplog.text


def test_warnings_and_errors_of_a_hospital_come_along(
    tiny: Experiment,
    cohort: Cohort,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(self: Hospital, *_: Any, **__: Any) -> Any:
        cluster_hospital.log.warning("the disk is nearly full")
        raise InputError("the scanner is down")

    monkeypatch.setattr(Hospital, "answer", broken)
    with pytest.raises(InputError, match=r"^the scanner is down$"):
        train(tiny, cohort=cohort, out=tmp_path / "run", device="cpu", engine=Spread())
    assert "round 1: hospital-2 failed: the scanner is down" in caplog.text
    assert "the disk is nearly full" in caplog.text


def test_other_images_on_another_machine_are_noticed(
    tiny: Experiment, cohort: Cohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_hospital, "read_cohort", lambda path: blob_cohort(images=21))
    with pytest.raises(InputError, match="reads other images than the machine that started the run; put"):
        train(tiny, cohort=cohort, out=tmp_path / "run", device="cpu", engine=Spread())


@pytest.mark.parametrize(
    ("changes", "own", "environment", "said"),
    [
        ({"clipping": {"rule": "median"}}, {}, {}, r"^clipping\.rule = median: it reads un-noised norms, "),
        ({"intermediaries": {"rule": "adaptive"}}, {}, {}, r"^intermediaries\.rule = adaptive: it reads un-"),
        ({}, {"model": torch.nn.Conv2d(1, 1, 1)}, {}, "^model: a network of your own is in this process"),
        ({}, {"engine": "flour"}, {}, r"^--engine 'flour': choose in-process or flower$"),
        ({}, {}, {"RAY_ADDRESS": "head:6379"}, "^cohort: .* RAY_ADDRESS = head:6379 names a cluster; put"),
    ],
)
def test_what_cannot_travel_is_refused_in_one_sentence(
    changes: dict[str, Any],
    own: dict[str, Any],
    environment: dict[str, str],
    said: str,
    tiny: Experiment,
    cohort: Cohort,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=said):
        build(tiny.change(**changes), cohort=cohort, device="cpu", **{"engine": "flower", **own})


def test_a_cluster_that_is_not_there_is_not_waited_for(
    tiny: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=rf"^RAY_ADDRESS = {address}: it does not answer .*ray start"):
            build(tiny, device="cpu", engine="flower")


@pytest.mark.parametrize("missing", ["flwr", "ray"])
def test_without_flower_or_ray_it_says_how_to_get_them(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = command_line("run", "demo", "--engine", "flower", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert f"this needs {missing}, which is not installed; pip install 'silodp[flower]'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_gpus_are_for_a_cluster(tmp_path: Path) -> None:
    done = command_line("run", "demo", "--gpus", "0.5", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "--gpus 0.5: only hospitals of --engine flower share GPUs; leave it out" in done.stderr


def test_figures_that_do_not_travel_are_not_promised(tiny: Experiment, cohort: Cohort) -> None:
    parts = build(tiny.change(diagnostics=True), cohort=cohort, device="cpu", engine=Spread())
    assert not parts.experiment.diagnostics
    assert parts.engine.diagnostics == {}
