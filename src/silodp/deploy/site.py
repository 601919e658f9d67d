"""A hospital's own process: it holds the data, checks every request itself, and keeps the last word.

    ledger.jsonl            every release that this hospital took part in, over all runs
    refusals.jsonl          what was refused, and why
    heard.json              the coordinator's last request
    runs/RUN/agreement.json what was signed: with coordinator.sig and own.sig
    runs/RUN/answered       the last plan that was answered, and the very reply
    runs/RUN/state/         optimizer states and the secret of its shares of noise; they never leave

Guarantee: a contribution leaves only for a plan that the coordinator signed, that is what the agreement says
and that the hospital's own limits allow, with its price in the hospital's ledger before. A round is answered
once: the same plan again gets the same bytes, another plan of that round nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from silodp.cohorts.cohort import HospitalData
from silodp.deploy.agreement import Agreement, derive_agreed, refuse_undeployable
from silodp.deploy.answered import Answered
from silodp.deploy.checks import (
    of_one_site,
    refuse_before_deriving,
    refuse_near,
    refuse_other_plan,
    refuse_over_limits,
)
from silodp.deploy.envelope import Reply, Request, digest, open_request, seal
from silodp.deploy.keys import fingerprint, verified
from silodp.deploy.limits import Limits
from silodp.deploy.notes import note_heard, note_refusal
from silodp.deploy.status import REFUSALS, events_of
from silodp.engines.figures import parameters_from, scores_to_bytes
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.facts import HospitalFacts, facts_of
from silodp.files import private_folder, private_open, read_plain, to_json, write_atomically
from silodp.hospital import Hospital
from silodp.messages import RoundPlan
from silodp.privacy.accountants import hospital_epsilon
from silodp.privacy.adversaries import against
from silodp.privacy.ledger import Ledger
from silodp.runs.build import build_hospitals, build_trainer, device_named
from silodp.runs.parts import Public
from silodp.tasks import task_named

log = logging.getLogger("silodp")

Load = Callable[[Experiment], HospitalData]
"""The hospital's own images in the form that an experiment asks for."""


@dataclass(frozen=True)
class _Joined:
    """A run that this site has agreed to."""

    agreement: Agreement
    public: Public
    hospital: Hospital
    intermediaries: int
    delta: float  # of this hospital's limit, where it names none


class Site:
    """Answers signed requests from one coordinator, for one hospital."""

    def __init__(
        self,
        folder: Path,
        name: str,
        key: Ed25519PrivateKey,
        coordinator: Ed25519PublicKey,
        limits: Limits,
        load: Load,
        device: str = "auto",
        starts: Path | None = None,
    ) -> None:
        """A site whose files are in `folder`, which is its owner's alone.

        Args:
            key: signs what leaves.
            coordinator: whose requests are listened to.
            limits: what is allowed.
            load: reads its data.
            starts: where a start lies that is not the package's own.
        """
        self.folder, self.name, self.limits = folder, name, limits
        self._key, self._coordinator, self._load, self._device = key, coordinator, load, device
        self._starts = starts or folder / "starts"
        self._data: tuple[str, HospitalData] | None = None
        self._run: _Joined | None = None
        private_folder(folder)
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.ledger.repair()

    def handle(self, sealed: bytes) -> bytes:
        """The sealed reply to a sealed request. It never raises: what goes wrong is a refusal."""
        try:
            request = open_request(sealed, self._coordinator)
            if request.hospital != self.name:
                raise InputError(f"request: it is for {request.hospital!r:.60}, and this is {self.name}")
            if not request.run or not request.run.isalnum() or len(request.run) > 64:
                raise InputError("request: its run has no proper number")
            note_heard(self.folder, request)
            return self._answer(request, sealed)
        except InputError as error:
            reason = str(error)
            if os.sep in reason:  # a path, and it may name a patient
                log.warning("refused: %s", error)
                reason = "it cannot do what is asked; its log says why"
        except Exception as error:  # of the network, the data or the disk: its text may tell of patients
            log.exception("a request could not be answered")
            reason = f"it failed ({type(error).__name__}); its log says why"
        log.warning("refused: %s", reason)
        note_refusal(self.folder / REFUSALS, reason)
        return seal(Reply("refusal", digest(sealed), self.name, {"reason": reason}), self._key)

    def _answer(self, request: Request, sealed: bytes) -> bytes:
        if request.kind == "plan":
            return self._plan(request, sealed)
        content: tuple[Mapping[str, Any], bytes]
        if request.kind == "facts":
            content = self._facts(request), b""
        elif request.kind == "agree":
            content = self._agree(request), b""
        elif request.kind == "evaluate":
            content = {}, self._evaluate(request)
        else:
            statement = self._statement(request)
            content = {"signature": self._key.sign(statement).hex()}, statement
        return seal(Reply("answer", digest(sealed), self.name, *content), self._key)

    # Before round one

    def _facts(self, request: Request) -> dict[str, Any]:
        """What the coordinator may know of the data, for an experiment."""
        experiment = _experiment_of(request.about.get("experiment"))
        refuse_undeployable(experiment)
        facts = self._facts_of(experiment, self._images(experiment))
        return {"facts": facts.to_dict(), "validation_metrics": self.limits.validation_metrics}

    def _facts_of(self, experiment: Experiment, data: HospitalData) -> HospitalFacts:
        rule, classes = experiment.intermediaries, experiment.cohort.classes
        return facts_of(data, task_named(experiment.task), rule.min_samples, classes)

    def _agree(self, request: Request) -> dict[str, str]:
        """Signs an agreement that holds; the same one again is signed again."""
        agreement = Agreement.from_bytes(request.payload)
        place = self._place(request.run)
        if agreement.run != request.run:
            raise InputError("agreement: it is of another run than the request")
        if (place / "agreement.json").exists():
            if read_plain(place / "agreement.json") != agreement.to_bytes():
                raise InputError("agreement: another one was signed for this run; start a new run")
        else:
            refusal = "agreement: the coordinator's own signature is not under it"  # there to be shown later
            content, said = agreement.to_bytes(), request.about.get("signature")
            signature = verified(said, self._coordinator, content, refusal)
            joined = self._join(agreement, fresh=True)
            private_folder(place)
            write_atomically(place / "token", secrets.token_bytes(32))
            write_atomically(place / "coordinator.sig", signature)
            write_atomically(place / "own.sig", self._key.sign(content))
            write_atomically(place / "agreement.json", content)
            self._run = joined  # no plan of it is answered before it is signed
        return {"signature": self._key.sign(agreement.to_bytes()).hex()}

    def _join(self, agreement: Agreement, *, fresh: bool) -> _Joined:
        """Derives everything that the agreement says, and refuses it where one thing comes out otherwise.

        `fresh`: it is not signed yet, so all of its rounds are still to be paid for.
        """
        experiment = agreement.read_experiment()
        refuse_undeployable(experiment)
        refuse_before_deriving(self.limits, agreement, experiment)
        data = self._images(experiment)
        if self._facts_of(experiment, data) not in experiment.participation.training(agreement.facts):
            raise InputError(
                f"agreement: what it says of {self.name}, if it trains, is not what its data are"
            )
        mine = fingerprint(self._key.public_key())
        if agreement.keys.get(self.name) != mine:
            raise InputError(f"agreement: it names another key for {self.name} than {mine[:16]}…")
        public, events = derive_agreed(agreement, experiment, self._starts, device_named(self._device))
        refuse_near(self.limits, events, agreement.delta, public.mechanism.shares)
        delta = self._delta(agreement)
        if fresh:
            refuse_over_limits(self.limits, self.ledger.events, of_one_site(events), delta)
        torch.set_num_threads(public.experiment.threads or 1)  # sums depend on how they are divided
        trainer = build_trainer(public, [data])
        (hospital,) = build_hospitals(public, trainer, [data])
        v = events[0].contributions if events[0].part == "intermediary" else 1
        return _Joined(agreement, public, hospital, v, delta)

    # In a round

    def _plan(self, request: Request, sealed: bytes) -> bytes:
        """Checks, counts, trains, keeps the reply; the same request again gets the kept one."""
        place = self._place(request.run)
        last = Answered.read(place / "answered")
        if last is not None and last.request == digest(sealed):
            return last.reply
        run = self._joined(request.run)
        plan = RoundPlan.from_bytes(request.payload)
        if last is not None and plan.round <= last.round:
            raise InputError(f"plan: round {plan.round}, and round {last.round} was answered by another plan")
        refuse_other_plan(plan, run.agreement, run.public, run.intermediaries)
        events = of_one_site(plan.events, self._number_of(plan, request.run))
        known = set(self.ledger.events)
        new = [event for event in events if event not in known]
        refuse_over_limits(self.limits, self.ledger.events, new, run.delta)
        before = last.round if last is not None else 0
        run.hospital.put_down(place / "state", 0)  # the secret of its noise, before it is used
        run.hospital.take_up(place / "state", before)
        with private_open(place / "plans", "a") as file:
            file.write(events[0].digest + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.ledger.record(events)
        device = run.public.model.values.device
        answer, _ = run.hospital.answer(plan.to(device))
        run.hospital.put_down(place / "state", plan.round, keep=before)
        reply = seal(Reply("answer", digest(sealed), self.name, {}, answer.to_bytes()), self._key)
        Answered(plan.round, digest(sealed), reply).write(place / "answered")
        log.info("round %d of run %s: answered", plan.round, request.run[:8])
        return reply

    def _number_of(self, plan: RoundPlan, run: str) -> str:
        """A plan's number in the ledger. Two runs may begin with the same plan, and are paid for apart; so is
        a run whose files were lost, and with them the secret that its noise came from."""
        token = read_plain(self._place(run) / "token")
        return hashlib.sha256(token + f"/{run}/{plan.digest}".encode()).hexdigest()

    def _delta(self, agreement: Agreement) -> float:
        """The smallest δ that this hospital ever agreed on: a larger one opens no full ledger."""
        known = [Agreement.from_bytes(read_plain(path)) for path in self.folder.glob("runs/*/agreement.json")]
        return min(one.delta for one in (agreement, *known))

    def _evaluate(self, request: Request) -> bytes:
        """Figures of a model on this hospital's own images, where its people let them out."""
        if not self.limits.validation_metrics:
            raise InputError("limits.validation_metrics = false: figures do not leave this hospital")
        run = self._joined(request.run)
        part, batch = str(request.about.get("part")), request.about.get("batch")
        if part not in ("validation", "test") or batch not in (None, "image", "scan", "hospital"):
            raise InputError(f"evaluate: {part!r:.40} in batches of {batch!r:.40} cannot be")
        parameters = parameters_from(request.payload, run.agreement.parameters)
        scores = run.hospital.evaluate(
            parameters.to(run.public.model.values.device),
            part,
            thorough=bool(request.about.get("thorough")),
            batch=batch,
        )
        return scores_to_bytes(scores)

    # Afterwards

    def _statement(self, request: Request) -> bytes:
        """What this hospital's own ledger says of the run, for it to sign."""
        agreement = self._read_agreement(request.run)
        last = Answered.read(self._place(request.run) / "answered")
        mine = events_of(self._place(request.run), self.ledger.events)
        shares = agreement.read_experiment().privacy.shares
        seen = against(mine, agreement.delta, shares(len(agreement.facts)))
        return to_json(
            {
                "format": "silodp site statement 1",
                "hospital": self.name,
                "run": request.run,
                "agreement": agreement.digest,
                "last_round": last.round if last is not None else 0,
                "releases": len(mine),
                "delta": agreement.delta,
                "epsilon": vars(seen),
                "epsilon_of_all_runs": self.spent(agreement.delta),
                "limit": self.limits.epsilon,
                "figures_let_out": self.limits.validation_metrics,
                "ledger": self.ledger.head,
            }
        ).encode()

    def spent(self, delta: float) -> float:
        """ε of everything in the site's ledger, for the hospital."""
        return hospital_epsilon(self.ledger.events, delta)

    # Files

    def _place(self, run: str) -> Path:
        return self.folder / "runs" / run

    def _joined(self, run: str) -> _Joined:
        """The run, taken up again from its agreement where this process has not met it."""
        if self._run is None or self._run.agreement.run != run:
            self._run = self._join(self._read_agreement(run), fresh=False)
        return self._run

    def _read_agreement(self, run: str) -> Agreement:
        path = self._place(run) / "agreement.json"
        if not path.exists():
            raise InputError(f"run {run[:8]}: nothing was agreed on with {self.name}")
        return Agreement.from_bytes(read_plain(path))

    def _images(self, experiment: Experiment) -> HospitalData:
        """The hospital's data under the name that the coordinator knows; read once for each form."""
        form = to_json([experiment.task, experiment.cohort.model_dump(mode="json")])
        if self._data is None or self._data[0] != form:
            try:
                found = self._load(experiment)
            except InputError as error:  # it may name files, and files patients: that stays here
                log.warning("the data cannot be read as asked: %s", error)
                raise InputError("its data cannot be read as the experiment asks; its log says why") from None
            self._data = form, HospitalData(self.name, **found.parts)
        return self._data[1]


def _experiment_of(tree: Any) -> Experiment:
    if not isinstance(tree, dict):
        raise InputError("facts: the request names no experiment")
    return Experiment(**tree)
