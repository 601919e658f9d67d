"""A network in memory, with a clock of its own: what carries bytes between a coordinator and its sites, and
what can go wrong on the way."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import blob_cohort
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from processes import free_port

from silodp import Cohort, Experiment
from silodp.cohorts.cohort import HospitalData
from silodp.deploy.engine import Coordinator
from silodp.deploy.envelope import Reply, unseal
from silodp.deploy.kit import init
from silodp.deploy.limits import Limits
from silodp.deploy.run import resume_deployed, run_deployed
from silodp.deploy.site import Site
from silodp.engines.transport import Delivery, Unreachable
from silodp.runs.result import Result

REHEARSAL = Limits(epsilon=1e6, intermediaries_at_most=16, validation_metrics=True, seeded_noise=True)


class Killed(BaseException):
    """The process that was at work is gone."""


class Lost(Exception):
    """Whoever had the message is gone, and nobody is told."""


@dataclass
class Clock:
    """Time that passes only where somebody waits."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


Mishap = Callable[[str, bytes, bytes], list[bytes | None]]
"""Of a hospital, a request and its reply: what arrives instead; None: nothing."""


@dataclass
class Network:
    """A `Transport`: messages are answered when they are waited for, in any order."""

    handlers: Mapping[str, Callable[[bytes], bytes]]
    clock: Clock = field(default_factory=Clock)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    mishap: Mishap = lambda hospital, request, reply: [reply]
    slow: Callable[[str], float] = lambda hospital: 0.0
    away: Callable[[str], bool] = lambda hospital: False
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    waiting: list[tuple[float, str, str, bytes]] = field(default_factory=list)
    ready: list[Delivery] = field(default_factory=list)
    forgotten: set[str] = field(default_factory=set)

    def connected(self) -> frozenset[str]:
        return frozenset(name for name in self.handlers if not self.away(name))

    def send(self, hospital: str, message: bytes) -> str:
        if self.away(hospital):
            raise Unreachable(f"{hospital} is not connected")
        ticket = str(len(self.sent))
        self.sent.append((hospital, message))
        self.waiting.append((self.clock.now + self.slow(hospital), ticket, hospital, message))
        return ticket

    def receive(self, timeout: float) -> Delivery | None:
        end = self.clock.now + timeout
        while True:
            while self.ready:
                delivery = self.ready.pop(self.rng.randrange(len(self.ready)))
                if delivery.ticket not in self.forgotten:
                    return delivery
            due = [one for one in self.waiting if one[0] <= end]
            if not due:
                self.clock.now = end
                return None
            one = self.rng.choice(due)
            self.waiting.remove(one)
            at, ticket, hospital, message = one
            self.clock.now = max(self.clock.now, at)
            try:
                reply = self.handlers[hospital](message)
            except Lost:
                continue
            for content in self.mishap(hospital, message, reply):
                self.ready.append(Delivery(ticket, content, "" if content is not None else "lost on the way"))

    def forget(self, ticket: str) -> None:
        self.forgotten.add(ticket)

    def close(self) -> None:
        pass


COHORT = blob_cohort(3, images=10, size=8)


@dataclass
class Federation:
    """Sites of the hospitals of a cohort, and their coordinator, all in one process.

    In `folder`: the sites' files in `sites/NAME`, a run in `run`.
    """

    folder: Path
    limits: Limits = REHEARSAL
    cohort: Cohort = COHORT
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    keys: dict[str, Ed25519PrivateKey] = field(default_factory=dict)
    sites: dict[str, Site] = field(default_factory=dict)
    refusals: Path | None = None

    def __post_init__(self) -> None:
        for hospital in self.cohort.hospitals:
            self.keys[hospital.name] = Ed25519PrivateKey.generate()
            self.start(hospital.name)

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def files(self, name: str) -> Path:
        return self.folder / "sites" / name

    def start(self, name: str) -> None:
        """A site in a process of its own, or again after the former one was killed."""
        (data,) = (one for one in self.cohort.hospitals if one.name == name)
        if name in self.sites:
            self.sites[name].ledger.close()

        def load(experiment: Experiment) -> HospitalData:
            return data

        self.sites[name] = Site(
            self.files(name), name, self.keys[name], self.key.public_key(), self.limits, load, "cpu"
        )

    def network(self, **behaviour: Any) -> Network:
        handlers = {name: (lambda sealed, name=name: self.sites[name].handle(sealed)) for name in self.sites}
        return Network(handlers, **behaviour)

    def coordinator(self, network: Network | None = None) -> Coordinator:
        network = network or self.network()
        roster = {name: key.public_key() for name, key in self.keys.items()}
        clock = network.clock.monotonic
        return Coordinator(network, self.key, roster, clock=clock, refusals=self.refusals)

    def run(
        self, experiment: Experiment, network: Network | None = None, out: Path | None = None, **more: Any
    ) -> Result:
        out = out or self.out
        return run_deployed(experiment, self.coordinator(network), out=out, device="cpu", **more)

    def resume(self, network: Network | None = None, out: Path | None = None, **more: Any) -> Result:
        return resume_deployed(out or self.out, self.coordinator(network), device="cpu", **more)

    def opened(self, hospital: str, reply: bytes) -> Reply:
        return unseal(Reply, reply, self.keys[hospital].public_key())

    def kit(self, folder: Path) -> Path:
        """A kit of these hospitals, whose files the sites write; nothing is at its SuperLink's port."""
        init(folder, list(self.sites))
        path = folder / "coordinator" / "coordinator.toml"
        path.write_text(path.read_text().replace("18443", str(free_port())))
        for name in self.sites:
            (folder / "hospitals" / name / "state").symlink_to(self.files(name))
        (folder / "coordinator" / "log").mkdir()
        self.refusals = folder / "coordinator" / "log" / "refusals.jsonl"
        return folder


def priced(experiment: Experiment) -> Experiment:
    """Noise for which three rounds cost a hospital ε = 4."""
    changes: dict[str, Any] = {"intermediaries__count": 1, "clipping": {"rule": "fixed", "bound": 0.5}}
    changes |= {"budget": {"epsilon": 4.0, "sets_noise": True}, "privacy__delta": 1e-2, "threads": 1}
    return experiment.change(**changes)
