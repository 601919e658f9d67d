"""The engine for hospitals on other machines: signed requests and replies over any transport.

Guarantee: a contribution counts only if the hospital's own key has signed it for this plan. Contributions are
on the coordinator's disk before they are used, and the list of those that count before noise is drawn, so a
coordinator that is killed at any point of a round comes back to the same sum.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from torch import Tensor

from silodp.deploy.envelope import Reply, Request, RequestKind, digest, seal, unseal
from silodp.deploy.journal import Journal
from silodp.deploy.keys import fingerprint
from silodp.deploy.notes import record_refusal
from silodp.engines.scores import parameters_to_bytes, scores_from_bytes
from silodp.engines.transport import Transport, Unreachable
from silodp.errors import InputError
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, Diagnostics, RoundPlan
from silodp.settings import EvaluationBatch
from silodp.tasks.scores import Scores

log = logging.getLogger("silodp")

RETRY_PAUSE = 1.0  # seconds until a hospital that is not connected, or whose message was lost, is asked again
EVALUATION_DEADLINE = 120.0  # seconds; validation must not hold up a round
RESEND_PAUSE = 60.0  # seconds until a silent hospital is asked again; doubled each time


@dataclass(frozen=True)
class Coordinator:
    """What the coordinator runs with.

    Attributes:
        transport: reaches the hospitals.
        key: signs requests and the agreement.
        roster: the hospitals' public keys, which alone identify who answers, in the order in which
            contributions are summed.
        patience: seconds within which all hospitals must answer before round one.
        clock: monotonic time in seconds.
        refusals: file for refusals of all runs, one a line, shown on the coordinator's page.
    """

    transport: Transport
    key: Ed25519PrivateKey
    roster: Mapping[str, Ed25519PublicKey]
    patience: float = 600.0
    clock: Callable[[], float] = time.monotonic
    refusals: Path | None = None

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the hospitals' keys, by name."""
        return {name: fingerprint(key) for name, key in self.roster.items()}


class Refused(InputError):
    """A hospital's site refused the request."""


class RemoteEngine:
    """An engine whose hospitals are on other machines; for one run."""

    def __init__(
        self, coordinator: Coordinator, run: str, journal: Path, deadline: float, least: int | None
    ) -> None:
        """Makes the engine; nothing is sent yet.

        Args:
            coordinator: who asks.
            run: the run's number.
            journal: folder for the contributions of the current round.
            deadline: seconds after which a hospital that has not answered is absent from the round.
            least: how many hospitals must answer; with fewer, the round waits. None: all that are asked.
        """
        self.diagnostics: dict[str, Diagnostics] = {}  # none travel
        self.evaluates = set(coordinator.roster)  # hospitals whose metrics may leave, as far as known
        self.mechanism: Mechanism | None = None  # checks contributions; set once the run is agreed on
        self.metric_names: dict[bool, set[str]] = {}  # of thorough and of quick scores; set then, too
        self.coordinator, self.run = coordinator, run
        self._journal, self._deadline, self._least = Journal(journal), deadline, least

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        """Yields contributions in the order of `asked`, once all have come or the deadline has passed."""
        came, closed = self._journal.open(plan.digest)
        if not closed:
            self._collect(plan, asked, came)
            self._journal.close(came)
        for name in asked:
            if name in came:
                yield Contribution.from_bytes(came[name])

    def _collect(self, plan: RoundPlan, asked: Sequence[str], came: dict[str, bytes]) -> None:
        """Asks until enough hospitals have answered, into `came`; waits as long as that takes."""
        payload, least = plan.to_bytes(), min(self._least or len(asked), len(asked))

        def take(name: str, reply: Reply) -> None:
            answer = Contribution.from_bytes(reply.payload)
            if (answer.hospital, answer.round, answer.plan) != (name, plan.round, plan.digest):
                raise InputError("its contribution is to another plan")
            if self.mechanism and (why := self.mechanism.malformed(plan, answer.numbers)) is not None:
                raise Refused(why)  # it would send the same again, so it is absent
            self._journal.add(name, reply.payload)
            came[name] = reply.payload

        refusals: dict[str, str] = {}
        while True:
            missing = [name for name in asked if name not in came and name not in refusals]
            refusals |= self.ask("plan", missing, take, payload=payload)
            silent = [name for name in missing if name not in came and name not in refusals]
            if len(came) >= least:
                return
            if not silent:
                said = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
                raise InputError(
                    f"round {plan.round}: {len(came)} of {len(asked)} hospitals take part, and {least} must "
                    f"(deployment.min_hospitals); nothing is released. {said}"
                )
            log.warning(
                "round %d: waiting for %s; %d of %d hospitals have answered, and %d must",
                plan.round, ", ".join(silent), len(came), len(asked), least,
            )  # fmt: skip

    def ask(
        self,
        kind: RequestKind,
        hospitals: Sequence[str],
        take: Callable[[str, Reply], None],
        about: Mapping[str, Any] | None = None,
        payload: bytes = b"",
        seconds: float | None = None,
    ) -> dict[str, str]:
        """Asks hospitals and hands each proper answer to `take`; returns the refusals, by hospital.

        A message is sent again until the deadline if it was lost, changed or answered by somebody else, if
        the hospital was disconnected, or if it is silent for long: a site answers a repeated request with
        the same bytes. A hospital that has not answered by the deadline is in neither.

        Args:
            kind: of the request.
            hospitals: names of those to ask.
            take: called once for each hospital that answers; raises InputError for an invalid answer.
            about: small public values of the request.
            payload: bytes of the request.
            seconds: until the deadline; default: that of a round.
        """
        transport, clock, key = self.coordinator.transport, self.coordinator.clock, self.coordinator.key
        sealed = {name: seal(Request(kind, self.run, name, about or {}, payload), key) for name in hospitals}
        end = clock() + (self._deadline if seconds is None else seconds)
        waiting: dict[str, str] = {}  # ticket → hospital
        due = dict.fromkeys(hospitals, 0.0)  # when to send next, by hospital that has not answered
        pauses = dict.fromkeys(hospitals, RESEND_PAUSE)
        refusals: dict[str, str] = {}
        lost: set[str] = set()  # hospitals that disconnected while they had a message
        looked = clock()
        try:
            while (now := clock()) < end and due:
                if now - looked >= RETRY_PAUSE:
                    looked, online = now, transport.connected()
                    for name in {*waiting.values()} - online:
                        lost.add(name)
                    for name in lost & online:  # connected again, without the message
                        due[name] = min(due.get(name, end), now)
                        lost.discard(name)
                for name in [name for name, at in due.items() if at <= now]:
                    try:
                        waiting[transport.send(name, sealed[name])] = name
                        due[name], pauses[name] = now + pauses[name], 2 * pauses[name]
                    except Unreachable:
                        due[name] = now + RETRY_PAUSE
                pause = min([RETRY_PAUSE, end - now, *(at - now for at in due.values())])
                delivery = transport.receive(max(0.01, pause))
                if delivery is None or (name := waiting.pop(delivery.ticket, "")) not in due:
                    continue
                try:
                    if delivery.content is None:
                        raise InputError(delivery.problem)
                    take(name, self._open_reply(name, sealed[name], delivery.content))
                    del due[name]
                except Refused as refused:
                    refusals[name] = str(refused)
                    del due[name]
                    log.warning("%s refuses: %s", name, refused)
                    if self.coordinator.refusals is not None:
                        record_refusal(self.coordinator.refusals, str(refused), hospital=name, asked=kind)
                except InputError as problem:
                    log.warning("%s: %s; it is asked again", name, problem)
                    due[name] = clock() + RETRY_PAUSE
        finally:
            for ticket in waiting:
                transport.forget(ticket)
        return refusals

    def _open_reply(self, name: str, request: bytes, content: bytes) -> Reply:
        """Verifies a reply: signed by `name`, and to this request."""
        try:
            reply = unseal(Reply, content, self.coordinator.roster[name])
        except InputError as error:
            raise InputError(f"{error}{self._other_signer(content)}") from None
        if reply.hospital != name or reply.request != digest(request):
            raise InputError("its reply is to another request")
        if reply.kind == "refusal":
            raise Refused(reply.reason)
        return reply

    def _other_signer(self, content: bytes) -> str:
        """Says which other hospital of the roster signed a reply; empty where none did."""
        for name, key in self.coordinator.roster.items():
            with suppress(InputError):
                unseal(Reply, content, key)
                return f": it is signed by {name}"
        return ""

    def measure_norms(self, plan: RoundPlan, asked: Sequence[str]) -> Tensor:
        raise InputError("clipping.rule: norms do not leave a hospital; choose another rule for a deployment")

    def evaluate(
        self, parameters: Tensor, part: str, *, thorough: bool, batch: EvaluationBatch | None = None
    ) -> dict[str, Scores]:
        """Scores of the connected hospitals that let them out; empty where none does."""
        scores: dict[str, Scores] = {}

        def take(name: str, reply: Reply) -> None:
            try:
                found = scores_from_bytes(reply.payload)
            except InputError as error:
                raise Refused(str(error)) from None  # it would send the same again
            names = self.metric_names[thorough]
            if found.values.keys() != names or found.resampled.keys() != (names if thorough else set()):
                raise Refused("its scores are not of the metrics that were asked for")
            scores[name] = found

        there = self.coordinator.transport.connected() & self.evaluates  # a round does not wait for scores
        asked = [name for name in self.coordinator.roster if name in there]
        about = {"part": part, "thorough": thorough, "batch": batch}
        seconds = min(self._deadline, EVALUATION_DEADLINE)
        self.ask("evaluate", asked, take, about, parameters_to_bytes(parameters), seconds)
        self.evaluates -= {name for name in asked if name not in scores}  # not asked again
        return {name: scores[name] for name in asked if name in scores}

    def save_states(self, folder: Path, round_: int) -> None:
        """Does nothing: a site saves its states itself, before its answer leaves."""

    def load_states(self, folder: Path, round_: int) -> None:
        """Does nothing: a site answers the current round again as before."""

    def clear_states(self, folder: Path) -> None:
        """Deletes the contributions after the last round."""
        self._journal.clear()

    def close(self) -> None:
        """Does nothing: whoever made the transport closes it."""
