"""The paper's algorithm, round by round: plan → train → release → step → record.

`rounds` is Eq. 1 with adaptive intermediaries; everything else in this module sets it up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from silodp.clipping import first_bound, next_bound
from silodp.cohorts.cohort import Cohort
from silodp.engines import Engine
from silodp.errors import InputError
from silodp.exchange import RoundPlan
from silodp.experiment import Experiment
from silodp.intermediary import estimates, first_count, most_intermediaries, next_count, split_sizes
from silodp.local_training import planned_steps, step_normaliser
from silodp.mechanism import Mechanism, Release
from silodp.participation import expected_hospitals, participants
from silodp.privacy.ledger import Ledger
from silodp.randomness import generator, seeded_noise
from silodp.server_optimizers import ServerOptimizer, server_optimizer


@dataclass
class State:
    """What the server carries from round to round; exactly this goes into a checkpoint."""

    round: int
    parameters: Tensor
    optimizer: dict[str, Any]
    clip_bounds: dict[str, float | None]  # by phase of the server optimizer; None: this round's median
    intermediaries: int
    capped: bool


@dataclass(frozen=True)
class Round:
    """One finished round, for the record."""

    plan: RoundPlan
    release: Release
    applied: bool
    capped: bool
    seconds: float


@dataclass(frozen=True)
class Federation:
    """The server: what a run fixes before its first round."""

    experiment: Experiment
    hospitals: dict[str, int]  # name → size of its training set; both are public
    engine: Engine
    optimizer: ServerOptimizer
    mechanism: Mechanism

    def rounds(self, state: State, ledger: Ledger) -> Iterator[Round]:
        """Trains, changing `state` in place; yields after every round."""
        experiment, expected = self.experiment, self.mechanism.expected_hospitals
        for number in range(state.round + 1, experiment.rounds + 1):
            started = time.perf_counter()
            measures = experiment.is_private and estimates(experiment.intermediaries, number)
            measures_only = measures and number == 1

            # The server sends θ, C and v; hospitals train their intermediaries and clip (Eq. 1).
            ready = self.optimizer.prepare(state.optimizer)
            plan = RoundPlan(
                round=number,
                parameters=state.parameters,
                intermediaries=state.intermediaries,
                clip_bound=state.clip_bounds[ready.phase],
                participants=self._participants(number),
                divisor=ready.divisor,
                normalise_steps=ready.normalise_steps,
                measure=measures or experiment.diagnostics,
            )
            # The door: sum, noise once, a fixed denominator. The ledger knows before anyone uses it.
            noise = seeded_noise(experiment.seed, number)
            release = self.mechanism.release(plan, self.engine.train(plan), noise, measures)
            ledger.record(release.events)

            # Everything from here on is post-processing of the release.
            if not measures_only:
                state.parameters, state.optimizer = self.optimizer.step(
                    state.optimizer, state.parameters, release.mean, release.noise_std, self._mean_steps(plan)
                )
            state.clip_bounds[ready.phase] = next_bound(
                experiment.clipping, plan.clip_bound, release.fraction_below
            )
            capped = state.capped
            if measures and release.unprotected is not None:
                ratio = release.unprotected.ratio
                wanted = next_count(experiment.intermediaries, plan.intermediaries, number, ratio, expected)
                state.intermediaries, state.capped = self._cap(wanted)
            state.round = number
            yield Round(plan, release, not measures_only, capped, time.perf_counter() - started)

    def first_state(self, parameters: Tensor) -> State:
        """Before round one."""
        settings, private = self.experiment.intermediaries, self.experiment.privacy
        wanted = first_count(
            settings, private.noise_multiplier, len(parameters), self.mechanism.expected_hospitals
        )
        intermediaries, capped = self._cap(wanted)
        if capped and settings.rule != "closed-form":
            smallest = min(self.hospitals, key=lambda name: self.hospitals[name])
            raise InputError(
                f"intermediaries.count = {wanted}: {smallest} has {self.hospitals[smallest]} "
                f"training images, enough for {intermediaries} intermediaries of {settings.min_samples}; "
                f"set intermediaries.count to at most {intermediaries}"
            )
        return State(
            0,
            parameters,
            self.optimizer.init(parameters),
            dict.fromkeys(("plain", "preconditioned"), first_bound(self.experiment.clipping)),
            intermediaries,
            capped,
        )

    def _cap(self, wanted: int) -> tuple[int, bool]:
        most = most_intermediaries(min(self.hospitals.values()), self.experiment.intermediaries.min_samples)
        return min(wanted, most), wanted > most

    def _mean_steps(self, plan: RoundPlan) -> float:
        """FedNova's τ_eff: the mean over all intermediaries of all hospitals, whoever takes part."""
        local = self.experiment.local
        steps = [
            step_normaliser(planned_steps(size, local), local)
            for samples in self.hospitals.values()
            for size in split_sizes(samples, plan.intermediaries)
        ]
        return sum(steps) / len(steps)

    def _participants(self, number: int) -> tuple[str, ...]:
        chance = generator(torch.device("cpu"), self.experiment.seed, "participation", number)
        return participants(self.experiment.participation, list(self.hospitals), chance)


def found_federation(experiment: Experiment, cohort: Cohort, engine: Engine) -> Federation:
    """Brings the parts together; `experiment` is resolved, `cohort` is checked."""
    sizes = {hospital.name: len(hospital.train) for hospital in cohort.hospitals}
    for name, size in sizes.items():
        if size < experiment.intermediaries.min_samples:
            raise InputError(
                f"cohort: {name} has {size} training images, fewer than intermediaries.min_samples = "
                f"{experiment.intermediaries.min_samples}; leave it out or give it more"
            )
    mechanism = Mechanism(
        experiment.privacy.noise_multiplier,
        experiment.clipping,
        experiment.participation,
        expected_hospitals(experiment.participation, len(sizes)),
    )
    return Federation(experiment, sizes, engine, server_optimizer(experiment.server), mechanism)
