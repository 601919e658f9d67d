"""A hospital's own process: it holds the data and checks every request before it answers.

    ledger.jsonl            every release that this hospital took part in, over all runs
    refusals.jsonl          what was refused, and why
    heard.json              the coordinator's last request
    runs/RUN/agreement.json what was signed; the signatures are in coordinator.sig and own.sig
    runs/RUN/answered       the last plan that was answered, and the reply
    runs/RUN/state/         optimizer states and the secret for its shares of noise; they never leave

Guarantee: a contribution leaves only for a plan that the coordinator signed, that conforms to the agreement
and that the hospital's own limits allow; its releases are in the hospital's ledger before. A round is
answered once: the same plan gets the same bytes again, and another plan for that round is refused.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from torch import Tensor

from silodp.cohorts.cohort import HospitalData
from silodp.deploy.agreement import Agreement, derive_agreed, refuse_undeployable
from silodp.deploy.checks import (
    as_counted_by_site,
    refuse_coordinator_epsilon,
    refuse_other_plan,
    refuse_releases_beyond_limits,
    refuse_run_beyond_limits,
)
from silodp.deploy.envelope import Reply, Request, digest, seal, unseal
from silodp.deploy.keys import fingerprint, verified
from silodp.deploy.last_answer import LastAnswer
from silodp.deploy.limits import Limits
from silodp.deploy.notes import record_refusal, record_request
from silodp.deploy.status import REFUSALS, events_of_run
from silodp.engines.scores import parameters_from, scores_to_bytes
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.facts import facts_of
from silodp.files import private_folder, private_open, read_plain, to_json, write_atomically
from silodp.hospital import Hospital
from silodp.messages import RoundPlan
from silodp.privacy.accountants import hospital_epsilon
from silodp.privacy.adversaries import against
from silodp.privacy.ledger import Ledger
from silodp.runs.build import build_hospitals, build_trainer, device_named
from silodp.runs.parts import Public

log = logging.getLogger("silodp")

Load = Callable[[Experiment], HospitalData]
"""The hospital's own images in the form that an experiment asks for."""


@dataclass(frozen=True)
class _AgreedRun:
    """A run that this site has agreed to, and what it derived from the agreement."""

    agreement: Agreement
    public: Public
    start: Tensor  # (d,) float32 on the CPU, θ of round one; the network itself changes with every request
    hospital: Hospital
    intermediaries: int
    delta: float  # for the limit on ε, where the limits name no δ


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
    ) -> None:
        """Opens a site.

        Args:
            folder: for its files; made accessible to its owner only. Start files that are not part of the
                package are in the folder `starts` beside it.
            name: of the hospital.
            key: signs replies.
            coordinator: the public key that requests must be signed with.
            limits: what the hospital allows.
            load: reads the hospital's images.
            device: "auto", "cpu" or "cuda".
        """
        self.folder, self.name, self.limits = folder, name, limits
        self._key, self._coordinator, self._load, self._device = key, coordinator, load, device
        self._data: tuple[str, HospitalData] | None = None
        self._run: _AgreedRun | None = None
        private_folder(folder)
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.ledger.repair()

    def handle(self, sealed: bytes) -> bytes:
        """Answers a sealed request with a sealed reply. It never raises: every error becomes a refusal."""
        try:
            request = unseal(Request, sealed, self._coordinator)
            if request.hospital != self.name:
                raise InputError(f"request: it is for {request.hospital!r:.60}, and this is {self.name}")
            if not request.run or not request.run.isalnum() or len(request.run) > 64:
                raise InputError("request: its run number is malformed")
            record_request(self.folder, request)
            return self._handle(request, sealed)
        except InputError as error:
            reason = str(error)
            if os.sep in reason:  # a path may contain a patient's name
                log.warning("refused: %s", error)
                reason = "it cannot do what is asked; its log says why"
        except Exception as error:  # its text may contain patients' names
            log.exception("a request could not be answered")
            reason = f"it failed ({type(error).__name__}); its log says why"
        log.warning("refused: %s", reason)
        record_refusal(self.folder / REFUSALS, reason)
        return seal(Reply("refusal", digest(sealed), self.name, {"reason": reason}), self._key)

    def _handle(self, request: Request, sealed: bytes) -> bytes:
        if request.kind == "plan":
            return self._answer_plan(request, sealed)
        answers: dict[str, Callable[[Request], tuple[dict[str, Any], bytes]]] = {
            "facts": self._facts, "agree": self._agree, "evaluate": self._evaluate, "finish": self._statement,
        }  # fmt: skip
        about, payload = answers[request.kind](request)
        return seal(Reply("answer", digest(sealed), self.name, about, payload), self._key)

    # Before round one

    def _facts(self, request: Request) -> tuple[dict[str, Any], bytes]:
        """Computes the public facts about the hospital's data, for an experiment."""
        tree = request.about.get("experiment")
        if not isinstance(tree, dict):
            raise InputError("facts: the request names no experiment")
        experiment = Experiment(**tree)
        refuse_undeployable(experiment)
        facts = facts_of(self._images(experiment), experiment)
        return {"facts": facts.to_dict(), "validation_metrics": self.limits.validation_metrics}, b""

    def _agree(self, request: Request) -> tuple[dict[str, Any], bytes]:
        """Checks and signs an agreement; one that was signed before is signed again."""
        agreement = Agreement.from_bytes(request.payload)
        place = self._run_folder(request.run)
        if agreement.run != request.run:
            raise InputError("agreement: it belongs to another run than the request")
        if (place / "agreement.json").exists():
            if read_plain(place / "agreement.json") != agreement.to_bytes():
                raise InputError("agreement: another one was signed for this run; start a new run")
        else:
            refusal = "agreement: the coordinator's signature on it is not valid"  # kept as evidence
            content, said = agreement.to_bytes(), request.about.get("signature")
            signature = verified(said, self._coordinator, content, refusal)
            joined = self._derive_run(agreement, fresh=True)
            private_folder(place)
            write_atomically(place / "token", secrets.token_bytes(32))
            write_atomically(place / "coordinator.sig", signature)
            write_atomically(place / "own.sig", self._key.sign(content))
            write_atomically(place / "agreement.json", content)
            self._run = joined  # from now on its plans are answered
        return {"signature": self._key.sign(agreement.to_bytes()).hex()}, b""

    def _derive_run(self, agreement: Agreement, *, fresh: bool) -> _AgreedRun:
        """Derives the run from its agreement; refuses the agreement where anything differs.

        Args:
            agreement: from the coordinator.
            fresh: whether it is not signed yet, so that the limits must allow all of its rounds.
        """
        experiment = agreement.read_experiment()
        refuse_undeployable(experiment)
        refuse_run_beyond_limits(self.limits, agreement, experiment)
        data = self._images(experiment)
        if facts_of(data, experiment) not in agreement.facts:
            raise InputError(f"agreement: its facts about {self.name} do not match the hospital's data")
        mine = fingerprint(self._key.public_key())
        if agreement.keys.get(self.name) != mine:
            raise InputError(f"agreement: it names another key for {self.name} than {mine[:16]}…")
        starts = self.folder.parent / "starts"
        public, events = derive_agreed(agreement, experiment, starts, device_named(self._device))
        refuse_coordinator_epsilon(self.limits, events, agreement.delta, public.mechanism.shares)
        delta = self._delta(agreement)
        if fresh:
            refuse_releases_beyond_limits(self.limits, self.ledger.events, as_counted_by_site(events), delta)
        start = public.model.values.to("cpu", copy=True)
        torch.set_num_threads(public.experiment.threads or 1)  # sums depend on the number of threads
        trainer = build_trainer(public, [data])
        (hospital,) = build_hospitals(public, trainer, [data])
        v = events[0].contributions if events[0].part == "intermediary" else 1
        return _AgreedRun(agreement, public, start, hospital, v, delta)

    # In a round

    def _answer_plan(self, request: Request, sealed: bytes) -> bytes:
        """Checks a plan, records its releases, trains, stores the reply; a repeated request gets that."""
        place = self._run_folder(request.run)
        last = LastAnswer.read(place / "answered")
        if last is not None and last.request == digest(sealed):
            return last.reply
        run = self._agreed_run(request.run)
        plan = RoundPlan.from_bytes(request.payload)
        if last is not None and plan.round <= last.round:
            raise InputError(f"plan: round {plan.round}, and round {last.round} was answered by another plan")
        refuse_other_plan(plan, run.agreement, run.public, run.start, run.intermediaries)
        events = as_counted_by_site(plan.events, self._ledger_digest(plan, request.run))
        known = set(self.ledger.events)
        new = [event for event in events if event not in known]
        refuse_releases_beyond_limits(self.limits, self.ledger.events, new, run.delta)
        before = last.round if last is not None else 0
        run.hospital.save_states(place / "state", 0)  # saves the secret for its noise before it is used
        run.hospital.load_states(place / "state", before)
        with private_open(place / "plans", "a") as file:
            file.write(events[0].digest + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.ledger.record(events)
        device = run.public.model.values.device
        answer, _ = run.hospital.answer(plan.to(device))
        run.hospital.save_states(place / "state", plan.round, keep=before)
        reply = seal(Reply("answer", digest(sealed), self.name, {}, answer.to_bytes()), self._key)
        LastAnswer(plan.round, digest(sealed), reply).write(place / "answered")
        log.info("round %d of run %s: answered", plan.round, request.run[:8])
        return reply

    def _ledger_digest(self, plan: RoundPlan, run: str) -> str:
        """The digest of a plan's events in the ledger; it differs between runs with the same plan.

        It also differs after a run's files were lost: the secret for its noise is another one then.
        """
        token = read_plain(self._run_folder(run) / "token")
        return hashlib.sha256(token + f"/{run}/{plan.digest}".encode()).hexdigest()

    def _delta(self, agreement: Agreement) -> float:
        """The smallest δ that this hospital ever agreed on, so that a larger one does not free budget."""
        known = [Agreement.from_bytes(read_plain(path)) for path in self.folder.glob("runs/*/agreement.json")]
        return min(one.delta for one in (agreement, *known))

    def _evaluate(self, request: Request) -> tuple[dict[str, Any], bytes]:
        """Evaluates a model on this hospital's images, if its limits allow metrics to leave."""
        if not self.limits.validation_metrics:
            raise InputError("limits.validation_metrics = false: metrics do not leave this hospital")
        run = self._agreed_run(request.run)
        part, batch = str(request.about.get("part")), request.about.get("batch")
        if part not in ("validation", "test") or batch not in (None, "image", "scan", "hospital"):
            raise InputError(f"evaluate: part {part!r:.40} with batch {batch!r:.40} is not possible")
        parameters = parameters_from(request.payload, run.agreement.parameters)
        scores = run.hospital.evaluate(
            parameters.to(run.public.model.values.device),
            part,
            thorough=bool(request.about.get("thorough")),
            batch=batch,
        )
        return {}, scores_to_bytes(scores)

    # Afterwards

    def _statement(self, request: Request) -> tuple[dict[str, Any], bytes]:
        """The statement on a run from this hospital's own ledger, and its signature."""
        agreement = self._read_agreement(request.run)
        last = LastAnswer.read(self._run_folder(request.run) / "answered")
        mine = events_of_run(self._run_folder(request.run), self.ledger.events)
        shares = agreement.read_experiment().privacy.shares
        seen = against(mine, agreement.delta, shares(len(agreement.facts)))
        statement = to_json(
            {
                "format": "silodp site statement 1",
                "hospital": self.name,
                "run": request.run,
                "agreement": hashlib.sha256(agreement.to_bytes()).hexdigest(),
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
        return {"signature": self._key.sign(statement).hex()}, statement

    def spent(self, delta: float) -> float:
        """ε of all releases in the site's ledger, for the hospital."""
        return hospital_epsilon(self.ledger.events, delta)

    # Files

    def _run_folder(self, run: str) -> Path:
        return self.folder / "runs" / run

    def _agreed_run(self, run: str) -> _AgreedRun:
        """A run that was agreed on; derived again from its agreement after a restart."""
        if self._run is None or self._run.agreement.run != run:
            self._run = self._derive_run(self._read_agreement(run), fresh=False)
        return self._run

    def _read_agreement(self, run: str) -> Agreement:
        path = self._run_folder(run) / "agreement.json"
        if not path.exists():
            raise InputError(f"run {run[:8]}: nothing was agreed on with {self.name}")
        return Agreement.from_bytes(read_plain(path))

    def _images(self, experiment: Experiment) -> HospitalData:
        """The hospital's data as an experiment asks for them, under the name in the roster; cached."""
        form = to_json([experiment.task, experiment.cohort.model_dump(mode="json")])
        if self._data is None or self._data[0] != form:
            try:
                found = self._load(experiment)
            except InputError as error:  # its text may contain names of files, and so of patients
                log.warning("the data cannot be read as asked: %s", error)
                raise InputError("its data cannot be read as the experiment asks; its log says why") from None
            self._data = form, replace(found, name=self.name)
        return self._data[1]
