"""What a round releases, as events: known from the settings and public sizes before anyone trains.

The mechanism carries it out. Statements and budgets need no more than this, and no PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from silodp.local.steps import batch_count, planned_steps
from silodp.privacy.budget import Budget
from silodp.privacy.events import Event

if TYPE_CHECKING:
    from silodp.clipping import ClippingRule
    from silodp.experiment import Experiment, ResolvedExperiment
    from silodp.participation import ParticipationRule


@dataclass(frozen=True)
class LocalNoise:
    """Noise that the hospitals add themselves, to every step of DP-SGD (the paper's section 2.3).

    Attributes:
        noise_multiplier: noise on the sum of a batch's clipped gradients, over the bound of one image's.
        batch_size: the largest batch: so many images of a hospital are in one step.
        steps: the most steps that a hospital takes in a round.
        passes: in how many of them one image is.
    """

    noise_multiplier: float
    batch_size: int
    steps: int
    passes: int


@dataclass(frozen=True)
class Releases:
    """How the rounds of an experiment are noised, and for whom that counts.

    Attributes:
        noise_multiplier: z of a whole round, for one intermediary, the quantile bits included.
        clipping: where C comes from.
        participation: who takes part.
        expected_hospitals: how many hospitals the plan expects in a round: the fixed denominator is
            this times v.
        sampling_rate: chance of one hospital's taking part.
        local: set where the hospitals' own noise protects their images; then the server adds none.
        stateful: whether hospitals keep optimizer states across rounds.
        shares: with how many hospitals' shares the noise is full; 0: the server adds it all.
    """

    noise_multiplier: float
    clipping: ClippingRule
    participation: ParticipationRule
    expected_hospitals: float
    sampling_rate: float = 1.0
    local: LocalNoise | None = None
    stateful: bool = False
    shares: int = 0

    def events(
        self, round_: int, intermediaries: int, clip_bound: float | None, estimates: bool
    ) -> tuple[Event, ...]:
        """What a round with this v and C will release: known before anyone trains.

        Args:
            round_: counted from 1.
            intermediaries: v.
            clip_bound: C; None where it will be the median of the round's norms.
            estimates: whether the rule for v will read the un-noised ratio; then an event says so.
        """
        update = Event(
            round=round_,
            released="model update",
            protected=True,
            noise_multiplier=self._multipliers[0],
            contributions=intermediaries,
            clip_bound=clip_bound if clip_bound and math.isfinite(clip_bound) else None,
            participation=self.participation.accounted_as(stateful=self.stateful),
            sampling_rate=self.sampling_rate,
        )
        if self.local is not None:
            own = self.local
            return (
                replace(
                    update,
                    noise_multiplier=own.noise_multiplier,
                    contributions=own.batch_size,
                    part="image",
                    steps=own.steps,
                    passes=own.passes,
                ),
            )
        events = [update]
        if self.clipping.releases_bits:
            events.append(replace(update, released="clip quantile", noise_multiplier=self._multipliers[1]))
        unprotected = replace(update, protected=False, noise_multiplier=0.0)
        if self.clipping.reads_norms:
            events.append(replace(unprotected, released="median norm"))
        if estimates:
            events.append(replace(unprotected, released="noise ratio"))
        return tuple(events)

    @property
    def _multipliers(self) -> tuple[float, float]:
        """Of the update and of the quantile bits; together they are z."""
        update, bits = self.clipping.multipliers(self.noise_multiplier)
        releases = (update, bits) if self.clipping.releases_bits else (update,)
        mu = math.hypot(*(1 / one if one else math.inf for one in releases))
        if self.noise_multiplier and mu * self.noise_multiplier > 1 + 1e-9:  # a rule spends z at most
            raise ValueError(
                f"clipping.rule = {self.clipping.rule}: noise multipliers {update:g} and {bits:g} are less "
                f"noise than the round's {self.noise_multiplier:g}"
            )
        return update, bits


def build_budget(experiment: ResolvedExperiment) -> Budget | None:
    """The budget check that the experiment asks for."""
    limit = experiment.budget
    if limit is None:
        return None
    return Budget(limit.epsilon, limit.delta or experiment.delta, limit.unit, limit.neighbours)


def releases_of(experiment: Experiment, sizes: Sequence[int]) -> Releases:
    """Those of hospitals with training sets of these sizes."""
    participation, by_hospitals = experiment.participation, experiment.privacy.level == "sample"
    return Releases(
        0.0 if by_hospitals else experiment.privacy.noise_multiplier,
        experiment.clipping,
        participation,
        participation.expected_hospitals(len(sizes)),
        participation.sampling_rate(len(sizes)),
        _local_noise(experiment, sizes) if by_hospitals else None,
        experiment.local.keeps_state,
        experiment.privacy.shares(len(sizes)),
    )


def _local_noise(experiment: Experiment, sizes: Sequence[int]) -> LocalNoise:
    """DP-SGD at the hospitals as their sizes and the plan fix it: the hospital that fares worst."""
    local = experiment.local
    return LocalNoise(
        experiment.privacy.noise_multiplier,
        max(math.ceil(size / batch_count(size, local.batch_size)) for size in sizes),
        max(planned_steps(size, local) for size in sizes),
        math.ceil(local.epochs),
    )
