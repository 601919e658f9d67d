"""The paper's algorithm, round by round: plan → train → release → step → record.

`Federation.rounds` is Eq. 1 with adaptive intermediaries; the rest of this module sets it up.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from silodp.diagnostics import Unprotected
from silodp.engines import Engine
from silodp.errors import InputError
from silodp.experiment import Experiment, ResolvedExperiment
from silodp.facts import HospitalFacts
from silodp.local.splitting import cap, split_sizes
from silodp.local.steps import planned_steps
from silodp.mechanism import Mechanism
from silodp.messages import Release, RoundPlan
from silodp.noise.streams import NoiseSource, keyed_noise, noise_of
from silodp.privacy.budget import Budget
from silodp.privacy.events import Event
from silodp.privacy.ledger import Ledger
from silodp.releases import build_budget, releases_of
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
        experiment, expected = self.experiment, self.mechanism.expected_hospitals
        for number in range(state.round + 1, experiment.rounds + 1):
            started = time.perf_counter()
            measures = experiment.is_private and experiment.intermediaries.reads(number)
            measures_only = measures and number == 1

            # The server sends θ, C and v; hospitals train their intermediaries and clip (Eq. 1).
            scale = self.optimizer.prepare(state.optimizer)
            bound = state.clip_bounds[scale.phase]
            plan = RoundPlan(
                round=number,
                parameters=state.parameters,
                intermediaries=state.intermediaries,
                clip_bound=bound,
                update_map=scale,
                events=self.mechanism.events(number, state.intermediaries, bound, measures),
                model=self.model,
            )
            asked = experiment.participation.participants(list(self.hospitals), state.draws, number)
            # The budget check: a round that would overspend does not start.
            if not self._affords(state, ledger, number, plan.events):
                return
            if bound is None:  # the authors' program: C is the median of this round's norms
                if not experiment.clipping.reads_norms:
                    raise ValueError(f"clipping.rule = {experiment.clipping.rule}: it names no C")
                norms = self.engine.measure_norms(plan, asked)
                plan = replace(plan, clip_bound=experiment.clipping.bound_of(norms))
            # The mechanism: sum, noise once, a fixed denominator. The ledger knows before anyone uses it.
            answers = self.engine.train(plan, asked, diagnose=measures or experiment.diagnostics)
            release, unprotected = self.mechanism.decode(
                plan, asked, answers, self._noise(number), self.engine.diagnostics
            )
            if not self._affords(state, ledger, number, release.events):
                return  # a round repeated after a crash with other noise: it is discarded unseen
            ledger.record(release.events)

            # Everything from here on is post-processing of the release.
            if not measures_only:
                mean, std = scale.decode(release.mean, release.noise_std, partial(self._mean_reach, plan))
                state.parameters, state.optimizer = self.optimizer.step(
                    state.optimizer, state.parameters, mean, std
                )
                self._average(state, number)
            state.clip_bounds[scale.phase] = experiment.clipping.next_bound(bound, release.fraction_below)
            capped = state.capped
            # Preconditioned updates have other norms: their ratio says nothing of the plain rounds' v.
            if measures and unprotected is not None and scale.phase == "plain":
                ratio = unprotected.ratio
                wanted = experiment.intermediaries.next_count(plan.intermediaries, number, ratio, expected)
                state.intermediaries, state.capped = cap(wanted, self.room)
            state.round = number
            seconds = time.perf_counter() - started
            yield Round(plan, asked, release, unprotected, not measures_only, capped, seconds)

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

    def _average(self, state: State, number: int) -> None:
        """Adds the round's parameters to `state.average` if it is one of the last rounds."""
        if number > self.experiment.rounds - self.experiment.averaged_rounds:
            state.averaged += 1
            mean = state.parameters if state.average is None else state.average
            state.average = mean + (state.parameters - mean) / state.averaged

    def _mean_reach(self, plan: RoundPlan) -> float:
        """FedNova's τ_eff: the mean over all intermediaries of all hospitals, whoever takes part."""
        local = self.experiment.local
        steps = [
            local.reach(planned_steps(size, local))
            for samples in self.hospitals.values()
            for size in split_sizes(samples, plan.intermediaries)
        ]
        return sum(steps) / len(steps)

    def _noise(self, number: int) -> NoiseSource:
        if self.noise_secret is not None and not self.experiment.privacy.reproducible:
            return keyed_noise(self.noise_secret, number)
        return noise_of(self.experiment.seed if self.experiment.privacy.reproducible else None, number)

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
            noise, rounds = self.experiment.privacy.noise_multiplier, self.experiment.rounds
            enough = noise * self.budget.noise_factor(events, rounds) if noise else math.nan
            raise InputError(
                f"budget.epsilon = {self.budget.epsilon:g}: one round costs ε = {cost:,.1f} for one "
                f"{self.budget.unit} at privacy.noise_multiplier = {noise:g}, v = {state.intermediaries}; "
                + (
                    f"{rounds} rounds need {enough:.3g} at this v"
                    if noise
                    else "set privacy.noise_multiplier"
                )
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


def build_mechanism(experiment: Experiment, sizes: Sequence[int]) -> Mechanism:
    """Builds the mechanism for hospitals with training sets of these sizes (images)."""
    return Mechanism(**vars(releases_of(experiment, sizes)))
