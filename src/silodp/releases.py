"""What a round releases, as events: known from settings and public sizes before anyone trains.

The mechanism carries it out. Privacy statements and budgets need no more than this, and no PyTorch. Every
event counts for two units: its noise multiplier z is that of one intermediary, and z/v that of the hospital.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

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
    """How the rounds of an experiment are noised, and what that means for each unit.

    Attributes:
        noise_multiplier: z of a whole round, for one intermediary, the quantile bits included.
        clipping: the rule that gives C.
        participation: the rule by which hospitals take part.
        expected_hospitals: in a round; the fixed denominator of the mean is this times v.
        sampling_rate: probability that one hospital takes part in a round.
        local: set where hospitals noise their own steps (DP-SGD); the server then adds no noise.
        stateful: whether hospitals keep optimizer states across rounds.
        shares: how many hospitals' shares make up the full noise; 0: the server adds all of it.
    """

    noise_multiplier: float
    clipping: ClippingRule
    participation: ParticipationRule
    expected_hospitals: float
    sampling_rate: float = 1.0
    local: LocalNoise | None = None
    stateful: bool = False
    shares: int = 0

    @classmethod
    def of(cls, experiment: Experiment, sizes: Sequence[int]) -> Self:
        """Those of an experiment, for hospitals with training sets of these sizes (images)."""
        participation, by_hospitals = experiment.participation, experiment.privacy.level == "sample"
        return cls(
            0.0 if by_hospitals else experiment.privacy.noise_multiplier,
            experiment.clipping,
            participation,
            participation.expected_hospitals(len(sizes)),
            participation.sampling_rate(len(sizes)),
            _local_noise(experiment, sizes) if by_hospitals else None,
            experiment.local.keeps_state,
            experiment.privacy.shares(len(sizes)),
        )

    def events(
        self, round_: int, intermediaries: int, clip_bound: float | None, estimates: bool
    ) -> tuple[Event, ...]:
        """The events of a round with this v and C, known before anyone trains.

        Args:
            round_: counted from 1.
            intermediaries: v.
            clip_bound: C; None where it will be the median of the round's norms.
            estimates: whether the rule for v will read the un-noised ratio, which is an event of its own.
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
        """Noise multipliers of the update and of the quantile bits; together they cost what z costs."""
        update, bits = self.clipping.multipliers(self.noise_multiplier)
        releases = (update, bits) if self.clipping.releases_bits else (update,)
        mu = math.hypot(*(1 / one if one else math.inf for one in releases))
        if self.noise_multiplier and mu * self.noise_multiplier > 1 + 1e-9:
            raise ValueError(
                f"clipping.rule = {self.clipping.rule}: noise multipliers {update:g} and {bits:g} are less "
                f"noise than the round's {self.noise_multiplier:g}"
            )
        return update, bits


def build_budget(experiment: ResolvedExperiment) -> Budget | None:
    """Builds the budget check that the experiment asks for; None where it sets no budget."""
    limit = experiment.budget
    if limit is None:
        return None
    return Budget(limit.epsilon, limit.delta or experiment.delta, limit.unit, limit.neighbours)


def _local_noise(experiment: Experiment, sizes: Sequence[int]) -> LocalNoise:
    """DP-SGD at the hospitals, as sizes and settings fix it, for the hospital with the weakest guarantee."""
    local = experiment.local
    return LocalNoise(
        experiment.privacy.noise_multiplier,
        max(math.ceil(size / batch_count(size, local.batch_size)) for size in sizes),
        max(planned_steps(size, local) for size in sizes),
        math.ceil(local.epochs),
    )
