"""The paper's algorithm, round by round: plan → train → release → step → record.

`Federation.rounds` is Eq. 1 with every hospital i split into v intermediaries j,

    θ ← θ + 1/(N·v) · ( Σ_ij Δ_ij / max(‖Δ_ij‖/C, 1) + N(0, z²C²·I) ),

and the rest of this module sets it up. Each piece has its module:

    Δ_ij                    local training from θ            `hospital.py`, `local/`
    1/max(‖Δ_ij‖/C, 1)      clipping to norm C               `local/clip.py`
    C                       where it comes from              `clipping.py`
    Σ_j, rounding           what a hospital sends            `Mechanism.encode`
    Σ_i, noise, 1/(N·v)     what the server makes of it      `Mechanism.decode`
    θ ← θ + …               this step, or another optimizer  `server_optimizers.py`
    v                       from ξ, φ and λ (Eq. 2 and 3)    `intermediary.py`
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from silodp.diagnostics import Unprotected
from silodp.engines import Engine
from silodp.errors import InputError
from silodp.experiment import ResolvedExperiment
from silodp.facts import HospitalFacts
from silodp.local.splitting import cap, split_sizes
from silodp.local.steps import planned_steps
from silodp.mechanism import Mechanism
from silodp.messages import Release, RoundPlan
from silodp.noise.streams import noise_of
from silodp.privacy.budget import Budget
from silodp.privacy.events import Event
from silodp.privacy.ledger import Ledger
from silodp.releases import build_budget
from silodp.server_optimizers import ServerOptimizer


@dataclass
class State:
    """What the server carries from round to round; exactly this goes into a checkpoint.

    Attributes:
        round: the last finished round; 0 before the first.
        parameters: (d,) float32, θ after that round, on the engine's device.
        optimizer: the server optimizer's state.
        clip_bounds: C of the next round, by phase of the server optimizer; None where it will be the median
            of that round's norms.
        intermediaries: v of the next round.
        capped: whether v is less than its rule asked for, since a hospital has too few images or patients.
        draws: the secret from which, with a round's number, follows who takes part in it.
        stopped: why the budget ended the run; None while it goes on.
        average: (d,) float32, the mean over the last rounds where `server.average` asks for one.
        averaged: the number of rounds in `average`.
    """

    round: int
    parameters: Tensor
    optimizer: dict[str, Any]
    clip_bounds: dict[str, float | None]
    intermediaries: int
    capped: bool
    draws: str
    stopped: str | None = None
    average: Tensor | None = None
    averaged: int = 0

    @property
    def model(self) -> Tensor:
        """(d,) float32, what the run publishes: the last parameters, or the mean over the last rounds."""
        return self.parameters if self.average is None else self.average


@dataclass(frozen=True)
class Round:
    """One finished round, for the record.

    Attributes:
        plan: what the hospitals were sent.
        asked: names of the hospitals that were asked.
        release: what the round made public.
        unprotected: un-noised statistics, where diagnostics were asked for; not part of the release.
        applied: False for a first round that only measured.
        capped: see `State`.
        seconds: wall-clock time.
    """

    plan: RoundPlan
    asked: tuple[str, ...]
    release: Release
    unprotected: Unprotected | None
    applied: bool
    capped: bool
    seconds: float


@dataclass(frozen=True)
class Federation:
    """The server: everything that a run fixes before its first round.

    Attributes:
        experiment: the complete settings.
        hospitals: name → size of its training set; both are public.
        room: name → the largest v for which the hospital has images and patients; public as well.
        engine: carries plans to hospitals and their contributions back.
        optimizer: applies a released mean to θ.
        mechanism: makes a release of contributions; the hospitals use the same one.
        model: what the parameters mean, see `FlatModel.identity`.
        budget: the limit on ε, where the experiment sets one.
        noise_secret: 32 bytes; with them a round that is repeated on the same sum is the same release.
    """

    experiment: ResolvedExperiment
    hospitals: dict[str, int]
    room: dict[str, int]
    engine: Engine
    optimizer: ServerOptimizer
    mechanism: Mechanism
    model: str = ""
    budget: Budget | None = None
    noise_secret: bytes | None = None

    def rounds(self, state: State, ledger: Ledger) -> Iterator[Round]:
        """Trains from `state` on, one round at a time.

        Guarantee: every release is in the ledger, on disk, before anything uses it; a round that would exceed
        the budget does not start. The server's state depends on hospitals' data through releases alone,
        unless the experiment chose a rule that reads un-noised norms, which the events then say.

        Args:
            state: where to go on from; changed in place.
            ledger: the run's record of releases; appended to.

        Yields:
            Each round when it is finished, the state being that after it.
        """
        experiment, hospitals = self.experiment, self.mechanism.expected_hospitals
        seed = experiment.seed if experiment.privacy.reproducible else None
        for number in range(state.round + 1, experiment.rounds + 1):
            started = time.perf_counter()
            measures = experiment.is_private and experiment.intermediaries.reads(number)

            # The server sends θ, C and v, unless the round would overspend: then it does not start.
            plan = self._plan(state, number, measures)
            asked = experiment.participation.participants(list(self.hospitals), state.draws, number)
            if not self._affords(state, ledger, number, plan.events):
                return
            if plan.clip_bound is None:  # the authors' program: C is the median of this round's norms
                norms = self.engine.measure_norms(plan, asked)
                plan = replace(plan, clip_bound=experiment.clipping.bound_of(norms))

            # Eq. 1. Each hospital sends the sum of its v clipped updates; the mechanism adds the sums and the
            # noise, once, and divides by N·v. The ledger knows of the release before anyone uses it.
            answers = self.engine.train(plan, asked, diagnose=measures or experiment.diagnostics)
            noise = noise_of(seed, number, self.noise_secret)
            release, unprotected = self.mechanism.decode(plan, asked, answers, noise, self.engine.diagnostics)
            if not self._affords(state, ledger, number, release.events):
                return  # a round repeated after a crash with other noise: it is discarded unseen
            ledger.record(release.events)

            # All that follows is post-processing of the release, and costs no privacy: the next θ and C.
            applied = not (measures and number == 1)  # a rule that reads λ has round one to measure it
            if applied:
                self._step(state, plan, release)
            phase = plan.update_map.phase
            bound = state.clip_bounds[phase]
            state.clip_bounds[phase] = experiment.clipping.next_bound(bound, release.fraction_below)
            # The exception is v by a rule that reads the λ of Eq. 2, un-noised: the events say so.
            # Preconditioned updates have other norms, so their λ says nothing of the plain rounds' v.
            capped = state.capped
            if measures and unprotected is not None and phase == "plain":
                ratio = unprotected.ratio
                wanted = experiment.intermediaries.next_count(plan.intermediaries, number, ratio, hospitals)
                state.intermediaries, state.capped = cap(wanted, self.room)
            state.round = number
            seconds = time.perf_counter() - started
            kept = unprotected if experiment.diagnostics else None  # a rule may read what is not recorded
            yield Round(plan, asked, release, kept, applied, capped, seconds)

    def first_state(self, parameters: Tensor) -> State:
        """The state before round one, from the model's (d,) initial parameters.

        Raises:
            InputError: if the settings ask for more intermediaries than a hospital has images for, or if the
                budget does not pay for a single round.
        """
        settings = self.experiment.intermediaries
        intermediaries, capped = first_intermediaries(
            self.experiment, len(parameters), self.mechanism.expected_hospitals, self.room
        )
        if capped and settings.asked is not None:
            smallest = min(self.room, key=self.room.__getitem__)
            raise InputError(
                f"intermediaries.count = {settings.asked}: {smallest} has {self.hospitals[smallest]} "
                f"training images, in whole patients enough for {intermediaries} intermediaries of "
                f"{settings.min_samples}; set intermediaries.count to at most {intermediaries}"
            )
        state = State(
            0,
            parameters,
            self.optimizer.init(parameters),
            dict.fromkeys(("plain", "preconditioned"), self.experiment.clipping.first_bound()),
            intermediaries,
            capped,
            str(self.experiment.seed) if self.experiment.privacy.reproducible else secrets.token_hex(32),
        )
        self._check_budget_pays_one_round(state)
        return state

    def _plan(self, state: State, number: int, measures: bool) -> RoundPlan:
        """What hospitals are sent in a round: all of it follows from settings and earlier releases.

        Its parameters are `state.parameters` itself, not a copy; its clip bound is None where the rule reads
        this round's norms.
        """
        scale = self.optimizer.prepare(state.optimizer)
        bound, clipping = state.clip_bounds[scale.phase], self.experiment.clipping
        if bound is None and not clipping.reads_norms:
            raise ValueError(f"clipping.rule = {clipping.rule}: it names no C")
        return RoundPlan(
            round=number,
            parameters=state.parameters,
            intermediaries=state.intermediaries,
            clip_bound=bound,
            update_map=scale,
            events=self.mechanism.events(number, state.intermediaries, bound, measures),
            model=self.model,
        )

    def _step(self, state: State, plan: RoundPlan, release: Release) -> None:
        """Replaces θ and the optimizer's state in `state`, and updates the mean over the last rounds."""
        mean, std = plan.update_map.decode(
            release.mean, release.noise_std, lambda: self._mean_reach(plan.intermediaries)
        )
        state.parameters, state.optimizer = self.optimizer.step(state.optimizer, state.parameters, mean, std)
        if plan.round > self.experiment.rounds - self.experiment.averaged_rounds:
            state.averaged += 1
            average = state.parameters if state.average is None else state.average
            state.average = average + (state.parameters - average) / state.averaged

    def _mean_reach(self, intermediaries: int) -> float:
        """FedNova's τ_eff: the mean normaliser over all intermediaries of all hospitals, whoever takes part.

        It follows from training set sizes, which are public, and v; not from what a hospital did.
        """
        local = self.experiment.local
        steps = [
            local.reach(planned_steps(size, local))
            for samples in self.hospitals.values()
            for size in split_sizes(samples, intermediaries)
        ]
        return sum(steps) / len(steps)

    def _affords(self, state: State, ledger: Ledger, number: int, events: Sequence[Event]) -> bool:
        """Whether the budget allows `events`; if not, `state.stopped` says why.

        Events that the ledger already holds, digest included, cost nothing more. Before the release, a round
        that will be repeated with the same noise counts as held.
        """
        ledger.check()
        if self.budget is None:
            return True
        known = set(ledger.events)
        new = [event for event in events if event not in known]
        planned = not any(event.digest for event in events)
        same_noise = self.experiment.privacy.reproducible or self.noise_secret is not None
        if planned and same_noise and any(event.round == number for event in known):
            new = []
        state.stopped = self.budget.refusal(ledger.events, new, number)
        return state.stopped is None

    def _check_budget_pays_one_round(self, state: State) -> None:
        """Refuses a budget below the cost of one round, before anything is spent."""
        if self.budget is None:
            return
        events = self.mechanism.events(1, state.intermediaries, state.clip_bounds["plain"], False)
        if (cost := self.budget.cost(events)) > self.budget.epsilon:
            z, rounds = self.experiment.privacy.noise_multiplier, self.experiment.rounds
            instead = "set privacy.noise_multiplier"
            if z:
                instead = f"{rounds} rounds need {z * self.budget.noise_factor(events, rounds):.3g} at this v"
            raise InputError(
                f"budget.epsilon = {self.budget.epsilon:g}: one round costs ε = {cost:,.1f} for one "
                f"{self.budget.unit} at privacy.noise_multiplier = {z:g}, v = {state.intermediaries}; "
                + instead
            )


def build_federation(
    experiment: ResolvedExperiment,
    facts: Sequence[HospitalFacts],
    engine: Engine,
    mechanism: Mechanism,
    model: str = "",
    optimizer: ServerOptimizer | None = None,
    noise_secret: bytes | None = None,
) -> Federation:
    """Builds the server of a resolved experiment from public facts about the hospitals.

    Hospitals that only provide validation and test images (`participation.members`) are left out.

    Args:
        facts: of all hospitals of the cohort, in its order.
        engine: connects the server to the hospitals.
        mechanism: the one that the hospitals use.
        model: what the parameters mean, see `FlatModel.identity`.
        optimizer: replaces the experiment's.
        noise_secret: see `Federation`.
    """
    members = experiment.participation.training(facts)
    sizes = {hospital.name: hospital.train for hospital in members}
    for name, size in sizes.items():
        if size < experiment.intermediaries.min_samples:
            raise InputError(
                f"cohort: {name} has {size} training images, fewer than intermediaries.min_samples = "
                f"{experiment.intermediaries.min_samples}; leave it out or give it more"
            )
    return Federation(
        experiment,
        sizes,
        {hospital.name: hospital.most_intermediaries for hospital in members},
        engine,
        optimizer or experiment.server.make(),
        mechanism,
        model,
        build_budget(experiment),
        noise_secret,
    )


def first_intermediaries(
    experiment: ResolvedExperiment, parameters: int, expected: float, room: Mapping[str, int]
) -> tuple[int, bool]:
    """v of round one, and whether it was capped because a hospital has too few images or patients.

    Args:
        parameters: d, the number of trainable parameters.
        expected: the expected number of hospitals in a round.
        room: the largest v of each hospital, by name.
    """
    z = experiment.privacy.noise_multiplier
    return cap(experiment.intermediaries.first_count(z, parameters, expected), room)
