"""The engine for hospitals in actors of Flower's simulation, on one machine or a cluster.

The server runs in this process; `cluster_hospital` is the other end. The result equals that of one process:
the same splits, the same noise, sums in the same order.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from silodp.cohorts import Cohort
from silodp.compatibility import refuse_norm_readers
from silodp.engines.flower.simulation import (
    Simulation,
    ray_address,
    refuse_unreachable_ray,
    refuse_without_ray,
)
from silodp.engines.scores import parameters_to_bytes, scores_from_bytes
from silodp.engines.transport import Transport
from silodp.errors import InputError
from silodp.experiment import RULES, Experiment, ResolvedExperiment
from silodp.files import remove_folder
from silodp.local.state import hand_on, state_folder
from silodp.messages import Contribution, Diagnostics, RoundPlan
from silodp.runs.cluster_hospital import packed, unpacked, write_cohort
from silodp.settings import EvaluationBatch
from silodp.tasks.scores import Scores

log = logging.getLogger("silodp")

HANDLER = "silodp.runs.cluster_hospital:answer"
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before a message that an actor died over is sent again
_PATIENCE = 60.0  # seconds of waiting at a time; there is no deadline


@dataclass(frozen=True)
class Cluster:
    """How hospitals are distributed over a cluster; `engine="flower"` is `engine=Cluster()`.

    Each takes `threads` CPUs of the experiment. RAY_ADDRESS names the cluster; without it Ray is started on
    this machine, and ends with the run.

    Attributes:
        gpus: that a hospital takes, such as 0.5 to let two share one; default: one, where this machine has a
            GPU and the device is not "cpu".
    """

    gpus: float | None = None

    def prepared(self, experiment: Experiment) -> Experiment:
        """The experiment as it can run on a cluster; refused if it cannot. No image is read."""
        refuse_without_ray()
        refuse_what_stays(experiment)
        refuse_unreachable_ray()
        if experiment.diagnostics and not isinstance(experiment, ResolvedExperiment):
            log.info("diagnostics = false: un-noised statistics are not sent between processes")
            return experiment.change(diagnostics=False)
        return experiment  # a resumed run keeps its settings, but no more statistics are recorded

    def engine(self, experiment: ResolvedExperiment, cohort: Cohort, place: torch.device) -> ClusterEngine:
        """For hospitals that are in this cohort, and a server on `place`."""
        gpus = float(place.type == "cuda") if self.gpus is None else self.gpus
        names = [hospital.name for hospital in cohort.hospitals]
        transport = Simulation(names, HANDLER, experiment.threads or 1, gpus)
        return ClusterEngine(transport, experiment, cohort, "cuda" if gpus else "cpu")


def refuse_what_stays(experiment: Experiment) -> None:
    """Refuses settings that only work with hospitals in the server's process."""
    refuse_norm_readers(experiment, "do not travel; choose another rule, or --engine in-process")
    for name in RULES:
        if not (kind := type(getattr(experiment, name))).__module__.startswith("silodp."):
            raise InputError(
                f"{name}.{kind.key} = {kind.name()}: a rule of your own is in this process only; use "
                "--engine in-process"
            )
    if experiment.model.kind == "custom":
        raise InputError(
            "model: a network of your own is in this process only; name one by model.kind, or use "
            "--engine in-process"
        )
    if experiment.cohort.kind == "custom" and (address := ray_address()):
        raise InputError(
            f"cohort: hospitals from Python are on this machine only, and RAY_ADDRESS = {address} names a "
            "cluster; put them into files (`silodp data prepare`), or unset RAY_ADDRESS"
        )


class ClusterEngine:
    """An engine for hospitals that `transport` and the run folder are accessible to."""

    def __init__(self, transport: Transport, experiment: Experiment, cohort: Cohort, device: str) -> None:
        self.diagnostics: dict[str, Diagnostics] = {}  # none travel
        self._transport = transport
        self._names = tuple(hospital.name for hospital in cohort.hospitals)
        self._keeps_state = experiment.local.keeps_state
        self._own: tempfile.TemporaryDirectory[str] | None = None  # gone with this process
        self._run: Path | None = None  # where hospitals put down what they carry from round to round
        self._last = dict.fromkeys(self._names, (0, False))  # the round, and whether it is in `_working`
        self._job: dict[str, Any] = {
            "experiment": experiment.to_toml(),
            "fingerprint": cohort.fingerprint(),
            "device": device,
            "cohort": None,
        }
        if experiment.cohort.kind == "custom":
            path = self._private() / "cohort.pt"
            write_cohort(path, cohort)
            self._job["cohort"] = str(path)

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        """Yields contributions in the order of `asked`, so that sums are those of one process."""
        payload = plan.to_bytes()
        about = {"kind": "plan", "job": self._job, "run": str(self._place()), "working": str(self._working)}
        requests = {}
        for name in asked:
            last, is_working = self._last[name]
            requests[name] = packed(
                {**about, "hospital": name, "last": last, "is_working": is_working}, payload
            )
        failed: list[Exception] = []
        for name, (reply, content) in self._ask(requests):
            if reply["saved"] and self._keeps_state:
                self._last[name] = plan.round, True
            if reply["problem"] is None:
                yield Contribution.from_bytes(content)
            else:
                log.warning("round %d: %s failed: %s", plan.round, name, reply["problem"][1])
                failed.append(_error(reply["problem"]))
        if failed and len(failed) == len(asked):
            raise failed[-1]  # all failed, so it is not one hospital's fault

    def measure_norms(self, plan: RoundPlan, asked: Sequence[str]) -> Tensor:
        raise InputError("clipping.rule: un-noised norms do not travel; choose another rule")

    def evaluate(
        self, parameters: Tensor, part: str, *, thorough: bool, batch: EvaluationBatch | None = None
    ) -> dict[str, Scores]:
        payload = parameters_to_bytes(parameters)
        about = {"kind": "evaluate", "part": part, "thorough": thorough, "batch": batch, "job": self._job}
        requests = {name: packed({**about, "hospital": name}, payload) for name in self._names}
        scores, problems = {}, []
        for name, (reply, content) in self._ask(requests):
            if reply["problem"] is None:
                scores[name] = scores_from_bytes(content)
            else:
                problems.append(_error(reply["problem"]))
        if problems:
            raise problems[0]
        return scores

    def save_states(self, folder: Path, round_: int) -> None:
        """Makes the states that actors have saved those of `round_`."""
        self._run = folder
        if not round_ or not self._keeps_state:
            return
        for name, (last, is_working) in self._last.items():
            source = state_folder(self._working if is_working else folder, name)
            hand_on(source, last, state_folder(folder, name), round_)
            self._last[name] = round_, False
        shutil.rmtree(self._working, ignore_errors=True)

    def load_states(self, folder: Path, round_: int) -> None:
        self._run = folder
        self._last = dict.fromkeys(self._names, (round_, False))
        shutil.rmtree(self._working, ignore_errors=True)

    def clear_states(self, folder: Path) -> None:
        remove_folder(folder)

    def close(self) -> None:
        """Ends Flower and Ray, and deletes temporary files."""
        self._transport.close()
        if self._own is not None:
            self._own.cleanup()

    @property
    def _working(self) -> Path:
        """Folder of states between checkpoints; a checkpoint's own stay until the next is complete."""
        return self._place() / "working"

    def _place(self) -> Path:
        return self._run.absolute() if self._run is not None else self._private()

    def _private(self) -> Path:
        if self._own is None:
            self._own = tempfile.TemporaryDirectory(prefix="silodp-cohort-")  # its owner's alone
        return Path(self._own.name)

    def _ask(self, requests: Mapping[str, bytes]) -> Iterator[tuple[str, tuple[dict[str, Any], bytes]]]:
        """Sends all requests, and yields the replies in their order.

        A request whose actor has died is sent again, since it has the same answer. After too many tries, the
        reply is a problem.
        """
        waiting = {self._transport.send(name, request): name for name, request in requests.items()}
        tries, again = dict.fromkeys(requests, 0), dict[str, float]()
        came: dict[str, tuple[dict[str, Any], bytes]] = {}
        for name in requests:
            while name not in came:
                now = time.monotonic()
                for other in [other for other, at in again.items() if at <= now]:
                    del again[other]
                    waiting[self._transport.send(other, requests[other])] = other
                delivery = self._transport.receive(min([_PATIENCE, *(at - now for at in again.values())]))
                if delivery is None or (other := waiting.pop(delivery.ticket, "")) == "":
                    continue
                if delivery.content is not None:
                    came[other] = unpacked(delivery.content)
                    for line in came[other][0]["warnings"]:
                        log.warning(line)
                elif tries[other] < len(PAUSES):
                    log.warning("%s: %s; it is asked again", other, delivery.problem)
                    again[other] = time.monotonic() + PAUSES[tries[other]]
                    tries[other] += 1
                else:
                    problem = ["Exception", f"no actor could answer ({delivery.problem})"]
                    came[other] = {"problem": problem, "saved": False, "warnings": []}, b""
            yield name, came.pop(name)


def _error(problem: tuple[str, str]) -> Exception:
    """An exception like the one that the hospital raised."""
    kinds: dict[str, type[Exception]] = {"InputError": InputError, "ValueError": ValueError}
    return kinds.get(problem[0], RuntimeError)(problem[1])
