"""Flower's simulation over a real Ray; what needs none is in tests/runs/test_cluster.py.

One test, for one start of Ray: it takes ten seconds on an idle machine, and a minute on a busy one.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from silodp import Cohort, Experiment, train
from silodp.engines.flower.simulation import Simulation
from silodp.engines.in_process import InProcess
from silodp.engines.transport import Delivery, Unreachable
from silodp.messages import Contribution, RoundPlan
from silodp.privacy.ledger import read_ledger
from silodp.runs.cluster import Cluster, ClusterEngine
from silodp.runs.result import Result

pytest.importorskip("ray", reason="Ray is not here: pip install 'silodp[flower]'")
pytestmark = pytest.mark.waits

FAULTS = "SILODP_TEST_FAULTS"
LONGEST = 400.0  # seconds for all of it


class Bounded(Simulation):
    """Outlives the runs that use it, and gives up rather than hang."""

    def __init__(self, hospitals: Sequence[str], handler: str) -> None:
        super().__init__(hospitals, handler)
        self.end = time.monotonic() + LONGEST

    def receive(self, timeout: float) -> Delivery | None:
        assert time.monotonic() < self.end, "Flower's simulation does not answer"
        return super().receive(min(timeout, 5.0))

    def close(self) -> None:
        pass

    def really_close(self) -> None:
        super().close()


class OneAway(InProcess):
    """One hospital is not even asked in round one."""

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        there = [name for name in asked if plan.round > 1 or name != "hospital-1"]
        return super().train(plan, there, diagnose=diagnose)


class Shared(Cluster):
    """Engines over one simulation."""

    transport: Simulation

    def engine(self, experiment: Any, cohort: Any, place: torch.device) -> ClusterEngine:
        return ClusterEngine(self.transport, experiment, cohort, "cpu")


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv(FAULTS, str(folder))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return folder


@pytest.fixture
def simulation(cohort: Cohort, faults: Path) -> Iterator[Bounded]:
    simulation = Bounded([hospital.name for hospital in cohort.hospitals], "simulation_actor:answer")
    try:
        yield simulation
    finally:
        simulation.really_close()


def test_over_ray_a_run_is_that_of_one_process(
    experiment: Experiment, cohort: Cohort, simulation: Bounded, faults: Path, tmp_path: Path
) -> None:
    cluster = Shared()
    object.__setattr__(cluster, "transport", simulation)
    lines: list[Any] = []

    def run(asked: Experiment, name: str, **more: Any) -> Result:
        lines.clear()
        out = tmp_path / name
        return train(asked, cohort=cohort, out=out, device="cpu", on_round=lines.append, **more)

    plain = experiment.change(threads=1, rounds=2, diagnostics=False)
    kept = plain.change(local__state="kept", clipping__rule="quantile", rounds=3)
    for name, asked in {"plain": plain, "kept": kept}.items():
        here, there = run(asked, name), run(asked, f"{name}-ray", engine=cluster)
        refuse_different(here.folder, there.folder)
        assert there.summary["test"] == here.summary["test"]

    # An actor that dies costs time and nothing else.
    (faults / "hospital-0").write_text("die")
    died = run(kept, "died", engine=cluster)
    assert not any(faults.iterdir())
    assert [line["absent"] for line in lines] == [{}, {}, {}]
    refuse_different(tmp_path / "kept", died.folder)
    # A hospital that raises is absent from the round, and nothing else changes: not the denominator either.
    (faults / "hospital-1").write_text("raise")
    away = run(plain, "away-ray", engine=cluster)
    assert [list(line["absent"]) for line in lines] == [["hospital-1"], []]
    refuse_different(run(plain, "away", engine=OneAway).folder, away.folder)

    # The process that trained is gone: Flower and Ray see the connection end, and nothing of them stays.
    group = simulation.pid
    assert group is not None
    assert living(group)
    assert simulation._connection is not None
    simulation._connection.close()
    end = time.monotonic() + 60
    while living(group) and time.monotonic() < end:
        time.sleep(0.2)
    assert living(group) == []
    assert simulation._folder is not None
    assert not simulation._folder.exists()


def test_a_simulation_that_cannot_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(["A"], "no.such:handler")
    monkeypatch.setattr("silodp.engines.flower.simulation._START", "import sys; sys.exit('no such machine')")
    simulation._started()
    folder = simulation._folder

    def ask() -> None:
        simulation.send("A", b"hello")  # fails already where the process has ended by now
        simulation.receive(60.0)

    with pytest.raises(Unreachable, match=r"has ended \(no such machine\); a hospital needs 1 CPUs"):
        ask()
    assert simulation.pid is None
    assert folder is not None
    assert not folder.exists()


def refuse_different(here: Path, there: Path) -> None:
    one, other = (load_file(folder / "model.safetensors") for folder in (here, there))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert read_ledger(here / "ledger.jsonl").events == read_ledger(there / "ledger.jsonl").events


def living(group: int) -> list[str]:
    """Names of the processes of a group that are more than an entry nobody has read yet."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
        except (OSError, ValueError):
            continue
        state, _, pgrp = rest.split()[:3]
        if int(pgrp) == group and state not in "ZX":
            found.append(name)
    return found
