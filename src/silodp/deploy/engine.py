"""Hospitals on other machines: signed requests out, signed replies back, over any transport.

Guarantee: a contribution counts only if the hospital's own key has signed it, for this very plan. What has
come is on the coordinator's disk before it is used, and who counts is written down before noise is drawn, so
a coordinator that is killed anywhere in a round comes back to the same sum.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from torch import Tensor

from silodp.deploy.envelope import Reply, Request, RequestKind, digest, open_reply, seal
from silodp.deploy.journal import Journal
from silodp.deploy.notes import note_refusal
from silodp.engines.figures import parameters_to_bytes, scores_from_bytes
from silodp.engines.transport import Transport, Unreachable
from silodp.errors import InputError
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, Diagnostics, RoundPlan
from silodp.settings import EvaluationBatch
from silodp.tasks.scores import Scores

log = logging.getLogger("silodp")

AGAIN = 1.0  # seconds until a hospital that is not connected, or whose message was lost, is tried again
FIGURES = 120.0  # seconds for figures: a round does not wait for them for long
PATIENCE = 60.0  # seconds until one that is silent is asked again; then twice as many, and so on
Content = TypeVar("Content")


class Refused(InputError):
    """A hospital's own site said no."""


class Remote:
    """An engine whose hospitals are elsewhere."""

    def __init__(
        self,
        transport: Transport,
        key: Ed25519PrivateKey,
        roster: Mapping[str, Ed25519PublicKey],
        run: str,
        journal: Path,
        deadline: float = 600.0,
        least: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        refusals: Path | None = None,
    ) -> None:
        """For one run.

        Args:
            transport: carries the bytes.
            key: the coordinator's.
            roster: each hospital's public key: who answers is known by it, and by nothing else.
            run: its number.
            journal: a folder for what has come in the round under way.
            deadline: seconds until those who have not answered a round are absent from it.
            least: so many must answer a round; with fewer it waits. By default all that are asked.
            clock: seconds, ever growing.
            refusals: a file for what hospitals refuse, one a line.
        """
        self.diagnostics: dict[str, Diagnostics] = {}  # none travel
        self.figures_from = set(roster)  # who has not said that figures stay at home
        self.mechanism: Mechanism | None = None  # of the run, once it is agreed on: what answers are held to
        self._transport, self._key, self._roster = transport, key, dict(roster)
        self.run, self._deadline, self._least = run, deadline, least
        self._journal, self._clock, self._refusals = Journal(journal), clock, refusals

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        """Contributions in the order of `asked`, when all have come or the deadline has passed."""
        came = self._journal.open(plan.digest)
        if not self._journal.closed:
            self._collect(plan, asked, came)
            self._journal.close(came)
        for name in asked:
            if name in came:
                yield Contribution.from_bytes(came[name])

    def _collect(self, plan: RoundPlan, asked: Sequence[str], came: dict[str, bytes]) -> None:
        """Asks until enough have answered; waits for as long as that takes."""
        payload, least = plan.to_bytes(), min(self._least or len(asked), len(asked))

        def take(name: str, reply: Reply) -> None:
            answer = Contribution.from_bytes(reply.payload)
            if (answer.hospital, answer.round, answer.plan) != (name, plan.round, plan.digest):
                raise InputError("its contribution is to another plan")
            if self.mechanism and (why := self.mechanism.malformed(plan, answer.numbers)) is not None:
                raise Refused(why)  # it would answer the same again: absent, like one that says no
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
                "round %d: waits for %s; %d of %d hospitals have answered and %d must",
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

        A message that is lost, changed on the way or answered by somebody else is sent again until the
        deadline, as it is to a hospital that went away and came back, or that is silent for long: a site
        answers the same request with the same bytes, however often it comes. Whoever has not answered by
        the deadline is in neither.

        Args:
            take: called once a hospital; raises InputError where an answer is not one.
            seconds: until the deadline; by default that of a round.
        """
        sealed = {
            name: seal(Request(kind, self.run, name, about or {}, payload), self._key) for name in hospitals
        }
        end = self._clock() + (self._deadline if seconds is None else seconds)
        waiting: dict[str, str] = {}  # ticket → hospital
        due = dict.fromkeys(hospitals, 0.0)  # when to send next, of those who have not answered
        pauses = dict.fromkeys(hospitals, PATIENCE)
        refusals: dict[str, str] = {}
        lost: set[str] = set()  # hospitals that went away with a message
        looked = self._clock()
        try:
            while (now := self._clock()) < end and due:
                if now - looked >= AGAIN:
                    looked, online = now, self._transport.connected()
                    for name in {*waiting.values()} - online:
                        lost.add(name)
                    for name in lost & online:  # back, and what it had is gone with the one who had it
                        due[name] = min(due.get(name, end), now)
                        lost.discard(name)
                for name in [name for name, at in due.items() if at <= now]:
                    try:
                        waiting[self._transport.send(name, sealed[name])] = name
                        due[name], pauses[name] = now + pauses[name], 2 * pauses[name]
                    except Unreachable:
                        due[name] = now + AGAIN
                pause = min([AGAIN, end - now, *(at - now for at in due.values())])
                delivery = self._transport.receive(max(0.01, pause))
                if delivery is None or (name := waiting.pop(delivery.ticket, "")) not in due:
                    continue
                try:
                    if delivery.content is None:
                        raise InputError(delivery.problem)
                    take(name, self._opened(name, sealed[name], delivery.content))
                    del due[name]
                except Refused as refused:
                    refusals[name] = str(refused)
                    del due[name]
                    self._note_refusal(name, kind, str(refused))
                except InputError as problem:
                    log.warning("%s: %s; it is asked again", name, problem)
                    due[name] = self._clock() + AGAIN
        finally:
            for ticket in waiting:
                self._transport.forget(ticket)
        return refusals

    def _note_refusal(self, name: str, kind: RequestKind, reason: str) -> None:
        log.warning("%s refuses: %s", name, reason)
        if self._refusals is not None:
            note_refusal(self._refusals, reason, hospital=name, asked=kind)

    def _opened(self, name: str, request: bytes, content: bytes) -> Reply:
        """The reply, if `name` itself has written it, to this very request."""
        try:
            reply = open_reply(content, self._roster[name])
        except InputError as error:
            raise InputError(f"{error}{self._signed_by(content)}") from None
        if reply.hospital != name or reply.request != digest(request):
            raise InputError("a reply to something else than it was asked")
        if reply.kind == "refusal":
            raise Refused(reply.reason)
        return reply

    def _signed_by(self, content: bytes) -> str:
        """Names the hospital that answered in another's place, where one of the roster did."""
        for name, key in self._roster.items():
            with suppress(InputError):
                open_reply(content, key)
                return f": it is signed by {name}"
        return ""

    def measure_norms(self, plan: RoundPlan, asked: Sequence[str]) -> Tensor:
        raise InputError("clipping.rule: norms do not leave a hospital; choose another rule for a deployment")

    def evaluate(
        self, parameters: Tensor, part: str, *, thorough: bool, batch: EvaluationBatch | None = None
    ) -> dict[str, Scores]:
        """The figures of those hospitals that are there and let them out; empty where none does."""
        scores: dict[str, Scores] = {}

        def take(name: str, reply: Reply) -> None:
            scores[name] = scores_from_bytes(reply.payload)

        there = self._transport.connected() & self.figures_from  # a round does not wait for figures
        asked = [name for name in self._roster if name in there]
        about = {"part": part, "thorough": thorough, "batch": batch}
        seconds = min(self._deadline, FIGURES)
        self.ask("evaluate", asked, take, about, parameters_to_bytes(parameters), seconds)
        self.figures_from -= {name for name in asked if name not in scores}  # it is not asked again
        return {name: scores[name] for name in asked if name in scores}

    def put_down(self, folder: Path, round_: int) -> None:
        """Nothing: a site puts its states down itself, before its answer leaves."""

    def take_up(self, folder: Path, round_: int) -> None:
        """Nothing: a site answers the round under way again as it did."""

    def clear(self, folder: Path) -> None:
        """The last round is over: the contributions go."""
        self._journal.clear()

    def close(self) -> None:
        """Nothing: the transport is its maker's."""
