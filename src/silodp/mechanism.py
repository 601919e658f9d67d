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
from dataclasses import dataclass, field

import torch
from torch import Tensor

from silodp.clipping import clip_factor, median_bound, norm, share_noise
from silodp.exchange import HospitalUpdate, RoundPlan
from silodp.experiment import ClippingSettings, ParticipationSettings
from silodp.intermediary import Ratio
from silodp.privacy.events import Event
from silodp.randomness import NoiseSource
from silodp.sketch import cosines, signs, sketch


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

    total: Tensor
    clip_bound: float
    bits: float = 0.0
    images: int = 0
    answered: set[str] = field(default_factory=set)
    absent: dict[str, str] = field(default_factory=dict)
    norms: list[Tensor] = field(default_factory=list)
    sketches: list[Tensor] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Mechanism:
    """Gaussian mechanism for a sum of clipped updates.

    Attributes:
        noise_multiplier: z of a whole round, for one intermediary, the quantile bits included.
        clipping: where C comes from.
        participation: who takes part.
        expected_hospitals: how many hospitals the plan expects in a round: the fixed denominator is
            this times v.
    """

    noise_multiplier: float
    clipping: ClippingSettings
    participation: ParticipationSettings
    expected_hospitals: float

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
        update_multiplier, bit_multiplier = self.noise_multiplier, 0.0
        if self.clipping.rule == "quantile":
            update_multiplier, bit_multiplier = share_noise(self.noise_multiplier, self.clipping.bit_share)

        std_of_sum = update_multiplier * gathered.clip_bound if update_multiplier else 0.0
        added = torch.zeros_like(gathered.total)
        if std_of_sum:
            name = f"model update, C {gathered.clip_bound!r}, v {plan.intermediaries}"
            added = noise(gathered.total, name, len(gathered.total)).mul_(std_of_sum)
        unprotected = self._measure(plan, gathered, float(norm(added)) / denominator)
        mean = gathered.total.add_(added)  # the sum itself is not needed again
        mean /= denominator

        fraction_below = None
        events = [self._event(plan, gathered, "model update", update_multiplier, _digest(mean))]
        if self.clipping.rule == "quantile":
            # One centred bit moves the sum by ½, so the noise that makes it z_b is z_b/2.
            bits = torch.tensor([gathered.bits])
            noised = gathered.bits + float(noise(bits, "clip quantile", 1)) * bit_multiplier / 2
            fraction_below = noised / denominator + 0.5
            digest = _digest(torch.tensor(fraction_below, dtype=torch.float64))
            events.append(self._event(plan, gathered, "clip quantile", bit_multiplier, digest))
        if self.clipping.rule == "median":
            events.append(self._event(plan, gathered, "median norm", None))
        if estimates:
            events.append(self._event(plan, gathered, "noise ratio", None))

        return Release(
            mean,
            gathered.clip_bound,
            std_of_sum / denominator,
            fraction_below,
            tuple(events),
            unprotected,
            gathered.absent,
            gathered.images,
        )

    def _measure(self, plan: RoundPlan, gathered: _Gathered, noise_norm: float) -> Unprotected | None:
        """Eq. 2 and the cosines of Fig. 2(b), from un-noised numbers, where the plan asks for them."""
        if not (plan.measure and gathered.norms):
            return None
        total = gathered.total
        similarity = cosines(torch.cat(gathered.sketches), sketch(total, signs(len(total), total.device)))
        ratio = Ratio(noise_norm, float(torch.cat(gathered.norms).sum()), float(norm(total)))
        return Unprotected(ratio, float(similarity.std(correction=0)), gathered.losses)

    def _gather(self, plan: RoundPlan, updates: Iterable[HospitalUpdate]) -> _Gathered:
        bound = math.inf if plan.clip_bound is None else plan.clip_bound
        gathered = _Gathered(torch.zeros_like(plan.parameters), bound)
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
                gathered.total.add_(update.clipped_sum, alpha=float(factor))
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
            self._clip_at_median(gathered, unclipped)
        return gathered

    def _clip_at_median(self, gathered: _Gathered, unclipped: list[Tensor]) -> None:
        """The authors' program: C is the median of this round's norms, so every update is kept for it."""
        gathered.clip_bound = self.clipping.bound
        if unclipped:
            norms = [torch.linalg.vector_norm(u, dim=1, dtype=torch.float64) for u in unclipped]
            gathered.clip_bound = median_bound(torch.cat(norms))
            for updates, sizes in zip(unclipped, norms, strict=True):
                gathered.total += clip_factor(sizes, gathered.clip_bound).to(updates.dtype) @ updates

    def _event(
        self, plan: RoundPlan, gathered: _Gathered, released: str, multiplier: float | None, digest: str = ""
    ) -> Event:
        return Event(
            round=plan.round,
            released=released,  # type: ignore[arg-type]
            protected=multiplier is not None,
            noise_multiplier=multiplier or 0.0,
            contributions=plan.intermediaries,
            clip_bound=gathered.clip_bound if math.isfinite(gathered.clip_bound) else None,
            participation=self.participation.rule,
            sampling_rate=1.0 if self.participation.rule == "all" else self.participation.rate,
            digest=digest,
        )


def _digest(released: Tensor) -> str:
    return hashlib.sha256(released.cpu().numpy().tobytes()).hexdigest()[:32]
