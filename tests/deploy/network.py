"""A network in memory, with a clock of its own: what carries bytes between a coordinator and its sites, and
what can go wrong on the way."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from processes import free_port

from silodp import Cohort, Experiment
from silodp.cohorts.cohort import HospitalData
from silodp.deploy.kit import init
from silodp.deploy.limits import Limits
from silodp.deploy.run import Coordinator
from silodp.deploy.site import Site
from silodp.engines.transport import Delivery, Unreachable

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


@dataclass
class Federation:
    """Sites of the hospitals of a cohort, and their coordinator, all in one process."""

    cohort: Cohort
    folder: Path
    limits: Limits = REHEARSAL
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    keys: dict[str, Ed25519PrivateKey] = field(default_factory=dict)
    sites: dict[str, Site] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for hospital in self.cohort.hospitals:
            self.keys[hospital.name] = Ed25519PrivateKey.generate()
            self.start(hospital.name)

    def start(self, name: str) -> None:
        """A site in a process of its own, or again after the former one was killed."""
        (data,) = (one for one in self.cohort.hospitals if one.name == name)
        if name in self.sites:
            self.sites[name].ledger.close()

        def load(experiment: Experiment) -> HospitalData:
            return data

        self.sites[name] = Site(
            self.folder / name, name, self.keys[name], self.key.public_key(), self.limits, load, "cpu"
        )

    def network(self, **behaviour: object) -> Network:
        handlers = {name: (lambda sealed, name=name: self.sites[name].handle(sealed)) for name in self.sites}
        return Network(handlers, **behaviour)  # type: ignore[arg-type]

    def coordinator(self, network: Network) -> Coordinator:
        roster = {name: key.public_key() for name, key in self.keys.items()}
        return Coordinator(network, self.key, roster, clock=network.clock.monotonic)

    def kit(self, folder: Path) -> Path:
        """A kit of these hospitals, whose files the sites write; nothing is at its SuperLink's port."""
        init(folder, list(self.sites))
        path = folder / "coordinator" / "coordinator.toml"
        path.write_text(path.read_text().replace("18443", str(free_port())))
        for name in self.sites:
            (folder / "hospitals" / name / "state").symlink_to(self.folder / name)
        (folder / "coordinator" / "log").mkdir()
        return folder

    def coordinator_of(self, kit: Path, network: Network) -> Coordinator:
        return replace(self.coordinator(network), refusals=kit / "coordinator" / "log" / "refusals.jsonl")
