"""THE door: the one place where clipped sums become a noisy mean. Nothing else leaves the hospitals.

Guarantee: whatever the hospitals answer, the released mean is that of a Gaussian mechanism whose noise
is `noise_multiplier` times the most that one intermediary can move the sum, hence `noise_multiplier`/v
times the most that one hospital can. The sensitivity comes from the clip bound and v of this very
round, and the denominator from the plan, never from who answered.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from silodp.clipping import clip_factor, median_bound, norm, share_noise
from silodp.exchange import HospitalUpdate, RoundPlan
from silodp.intermediary import Ratio
from silodp.lattice import sensitivity, spacing, to_lattice
from silodp.privacy.events import Event
from silodp.randomness import NoiseSource
from silodp.settings import ClippingSettings, ParticipationSettings
from silodp.sketch import cosines, signs, sketch

_BIT_LATTICE = 2.0**-20
"""The quantile bits are halves; their noise is rounded to multiples of this."""


@dataclass(frozen=True)
class Unprotected:
    """Un-noised statistics. They may be recorded in a simulation; using them is an `unprotected` event."""

    ratio: Ratio
    cosine_std: float
    losses: dict[str, float]


@dataclass(frozen=True)
class Release:
    """What a round gave: the released numbers, the events that say so, and notes that stay with the run.

    Attributes:
        mean: the noisy mean of the clipped updates.
        clip_bound: C of this round.
        noise_std: σ, standard deviation of the noise in each coordinate of `mean`.
        fraction_below: b̃, the noised fraction of updates with norm ≤ C; None without quantile clipping.
        unprotected: un-noised statistics, where the plan asked for them; not released.
        absent: hospitals that were asked and did not count, with the reason.
        images: images trained on.
    """

    mean: Tensor
    clip_bound: float
    noise_std: float
    fraction_below: float | None
    events: tuple[Event, ...]
    unprotected: Unprotected | None
    absent: dict[str, str]
    images: int


@dataclass
class _Gathered:
    """The running sum behind the door: one vector, and a small sketch an intermediary where measured."""

    total: Tensor  # in double precision; whole numbers, in units of the lattice, where there is one
    clip_bound: float
    distance: float | None  # of the lattice; without noise nothing is hidden, and nothing rounded
    bits: float = 0.0
    images: int = 0
    answered: set[str] = field(default_factory=set)
    absent: dict[str, str] = field(default_factory=dict)
    norms: list[Tensor] = field(default_factory=list)
    sketches: list[Tensor] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def unit(self) -> float:
        return self.distance or 1.0


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
class Mechanism:
    """Gaussian mechanism for a sum of clipped updates.

    Attributes:
        noise_multiplier: z of a whole round, for one intermediary, the quantile bits included.
        clipping: where C comes from.
        participation: who takes part.
        expected_hospitals: how many hospitals the plan expects in a round: the fixed denominator is
            this times v.
        sampling_rate: chance of one hospital's taking part.
        local: set where the hospitals' own noise protects their images; then this door adds none.
        stateful: whether hospitals keep optimizer states across rounds.
    """

    noise_multiplier: float
    clipping: ClippingSettings
    participation: ParticipationSettings
    expected_hospitals: float
    sampling_rate: float = 1.0
    local: LocalNoise | None = None
    stateful: bool = False

    def events(self, plan: RoundPlan, estimates: bool) -> tuple[Event, ...]:
        """What carrying out this plan will release: known before anyone trains.

        Args:
            plan: its v and C give the sensitivity.
            estimates: whether the rule for v will read the un-noised ratio.
        """
        rule = self.participation.rule
        update = Event(
            round=plan.round,
            released="model update",
            protected=True,
            noise_multiplier=self._multipliers[0],
            contributions=plan.intermediaries,
            clip_bound=plan.clip_bound if plan.clip_bound and math.isfinite(plan.clip_bound) else None,
            participation="fraction-kept" if rule == "fraction" and self.stateful else rule,
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
        if self.clipping.rule == "quantile":
            events.append(replace(update, released="clip quantile", noise_multiplier=self._multipliers[1]))
        unprotected = replace(update, protected=False, noise_multiplier=0.0)
        if self.clipping.rule == "median":
            events.append(replace(unprotected, released="median norm"))
        if estimates:
            events.append(replace(unprotected, released="noise ratio"))
        return tuple(events)

    @property
    def _multipliers(self) -> tuple[float, float]:
        """Of the update and of the quantile bits; together they are z."""
        if self.clipping.rule == "quantile":
            return share_noise(self.noise_multiplier, self.clipping.bit_share)
        return self.noise_multiplier, 0.0

    def release(
        self, plan: RoundPlan, updates: Iterable[HospitalUpdate], noise: NoiseSource, estimates: bool
    ) -> Release:
        """Sums, adds the noise once, divides by the plan's denominator.

        Args:
            plan: this round's plan; its v and C give the sensitivity.
            updates: consumed one by one into a running sum.
            noise: where the noise comes from.
            estimates: whether the rule for v will read the un-noised ratio; then an event says so.
        """
        gathered = self._gather(plan, updates)
        denominator = self.expected_hospitals * plan.intermediaries
        update_multiplier, bit_multiplier = self._multipliers

        # The noise is scaled by what one intermediary can move the sum by, and rounded to its lattice.
        std_of_sum = 0.0
        if update_multiplier and gathered.clip_bound:
            std_of_sum = update_multiplier * sensitivity(gathered.clip_bound, plan.intermediaries)
        added = torch.zeros_like(gathered.total)
        if std_of_sum:
            name = f"model update, C {gathered.clip_bound!r}, v {plan.intermediaries}"
            added = noise(gathered.total, name, len(gathered.total))
            added.mul_(std_of_sum / gathered.unit).round_()
        noise_norm = float(norm(added)) * gathered.unit / denominator
        unprotected = self._measure(plan, gathered, noise_norm)
        total = gathered.total.add_(added)  # the sum itself is not needed again
        mean = total.mul_(gathered.unit / denominator).to(plan.parameters.dtype)

        released = {"model update": _digest(mean)}
        fraction_below = None
        if self.clipping.rule == "quantile":
            # One centred bit moves the sum by ½, so the noise that makes it z_b is z_b/2.
            bits = torch.tensor([gathered.bits], dtype=torch.float64)
            steps = noise(bits, "clip quantile", 1).mul_(bit_multiplier / 2 / _BIT_LATTICE).round_()
            fraction_below = (gathered.bits + float(steps) * _BIT_LATTICE) / denominator + 0.5
            released["clip quantile"] = _digest(torch.tensor(fraction_below, dtype=torch.float64))
        bound = gathered.clip_bound if math.isfinite(gathered.clip_bound) else None
        events = tuple(
            replace(event, clip_bound=bound, digest=released.get(event.released, ""))
            for event in self.events(plan, estimates)
        )
        return Release(
            mean,
            gathered.clip_bound,
            std_of_sum / denominator,
            fraction_below,
            events,
            unprotected,
            gathered.absent,
            gathered.images,
        )

    def _measure(self, plan: RoundPlan, gathered: _Gathered, noise_norm: float) -> Unprotected | None:
        """Eq. 2 and the cosines of Fig. 2(b), from un-noised numbers, where the plan asks for them."""
        if not (plan.measure and gathered.norms):
            return None
        total = gathered.total.mul(gathered.unit).to(plan.parameters.dtype)
        similarity = cosines(torch.cat(gathered.sketches), sketch(total, signs(len(total), total.device)))
        ratio = Ratio(noise_norm, float(torch.cat(gathered.norms).sum()), float(norm(total)))
        return Unprotected(ratio, float(similarity.std(correction=0)), gathered.losses)

    def _gather(self, plan: RoundPlan, updates: Iterable[HospitalUpdate]) -> _Gathered:
        bound = math.inf if plan.clip_bound is None else plan.clip_bound
        gathered = _Gathered(
            torch.zeros_like(plan.parameters, dtype=torch.float64), bound, self._distance(bound, plan)
        )
        unclipped: list[Tensor] = []
        for update in updates:
            if update.hospital not in plan.participants or update.hospital in gathered.answered:
                gathered.absent[update.hospital] = "it answered without being asked"
                continue
            gathered.answered.add(update.hospital)
            shape = tuple(update.clipped_sum.shape)
            if shape != (plan.intermediaries,) * (plan.clip_bound is None) + tuple(plan.parameters.shape):
                gathered.absent[update.hospital] = f"its update has shape {shape}"
                continue
            size = norm(update.clipped_sum)
            if not (torch.isfinite(size) and math.isfinite(update.bits)):
                gathered.absent[update.hospital] = "its update is NaN or infinite"
                continue
            if plan.clip_bound is None:
                unclipped.append(update.clipped_sum)
            else:
                # A hospital that lies is held to the most that an honest one could contribute.
                factor = clip_factor(size, plan.intermediaries * bound)
                self._add(gathered, update.clipped_sum * factor.to(update.clipped_sum.dtype))
            limit = plan.intermediaries / 2
            gathered.bits += min(max(update.bits, -limit), limit)
            gathered.images += update.images
            if plan.measure and update.measurements is not None:
                gathered.norms.append(update.measurements.norms)
                gathered.sketches.append(update.measurements.sketches)
                gathered.losses[update.hospital] = float(update.measurements.loss)
        for name in plan.participants:
            if name not in gathered.answered:
                gathered.absent[name] = "it did not answer"
        if plan.clip_bound is None:
            self._clip_at_median(plan, gathered, unclipped)
        return gathered

    def _distance(self, clip_bound: float, plan: RoundPlan) -> float | None:
        private = self.noise_multiplier > 0 and 0 < clip_bound < math.inf
        return spacing(clip_bound, len(plan.parameters)) if private else None

    def _add(self, gathered: _Gathered, clipped: Tensor) -> None:
        gathered.total += to_lattice(clipped, gathered.distance) if gathered.distance else clipped

    def _clip_at_median(self, plan: RoundPlan, gathered: _Gathered, unclipped: list[Tensor]) -> None:
        """The authors' program: C is the median of this round's norms, so every update is kept for it."""
        norms = [torch.linalg.vector_norm(u, dim=1, dtype=torch.float64) for u in unclipped]
        gathered.clip_bound = median_bound(torch.cat(norms)) if norms else self.clipping.bound
        gathered.distance = self._distance(gathered.clip_bound, plan)
        for updates, sizes in zip(unclipped, norms, strict=True):
            self._add(gathered, clip_factor(sizes, gathered.clip_bound).to(updates.dtype) @ updates)


def _digest(released: Tensor) -> str:
    return hashlib.sha256(released.cpu().numpy().tobytes()).hexdigest()[:32]
