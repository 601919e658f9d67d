"""The one mechanism: clipped sums become whole numbers at a hospital, and a noisy mean at the server.

It is the bracket of Eq. 1 and the division by the number of updates,

    1/(N·v) · ( Σ_ij Δ_ij / max(‖Δ_ij‖/C, 1) + N(0, z²C²·I) ),

in two halves: `encode` clips one hospital's updates and adds them up; `decode` adds the hospitals' sums and
the noise, once, and divides.

Guarantee: whatever the hospitals answer, the released mean is that of a Gaussian mechanism whose noise is
`noise_multiplier` times the most that one intermediary can move the sum, hence `noise_multiplier`/v times the
most that one hospital can; where hospitals share the noise, if those that must be there add theirs. The
sensitivity comes from the clip bound and v of this very round, and the denominator from the plan, never from
who answered.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from silodp.diagnostics import Unprotected, measured
from silodp.errors import InputError
from silodp.local.blocks import blocks
from silodp.local.clip import add_clipped, clip_factor, norm, scale_factor
from silodp.messages import Contribution, Diagnostics, Release, RoundPlan
from silodp.noise.lattice import longest_sum, put_on_lattice, sensitivity, spacing
from silodp.noise.streams import NoiseSource, system_noise
from silodp.releases import Releases

_BIT_LATTICE = 2.0**-20
"""The quantile bits are halves; their noise is rounded to multiples of this."""

_TAIL = 10.0
"""Standard deviations that an honest share of noise exceeds with a probability of 1e-23."""


@dataclass(frozen=True)
class Mechanism(Releases):
    """Gaussian mechanism for a sum of clipped updates: what `Releases` says, carried out."""

    def encode(
        self,
        plan: RoundPlan,
        updates: Iterable[Tensor],
        hospital: str = "",
        noise: NoiseSource = system_noise,
    ) -> tuple[Tensor, Tensor]:
        """At a hospital: clips its intermediaries' updates, adds them up, and rounds the sum to the lattice.

        Guarantee: leaving out one of the updates moves the numbers by at most `sensitivity` of this C and v.
        An update that is NaN or infinite counts as zero, its bit included, and affects no other. Where noise
        is shared, the numbers include the hospital's share of it: 1/`shares` of the variance.

        Args:
            plan: with a clip bound.
            updates: tensors (d,) or (k, d), float32, of v updates in all, consumed one by one; each is
                overwritten, and all may be the same memory.
            hospital: its name, so that no two hospitals draw the same share of noise.
            noise: the source of that share.

        Returns:
            (d + 1,) float64 numbers as `Contribution` has them, and the (v,) float64 norms before clipping,
            NaN or infinite where an intermediary is lost. The norms must not leave the hospital.
        """
        total, measured = torch.zeros_like(plan.parameters), []
        factor_of = scale_factor if self.clipping.scales_up else clip_factor
        for update in updates:
            measured.append(norm(update).view(-1))
            add_clipped(total, update, factor_of(measured[-1], plan.bound))
        norms = torch.cat(measured)
        bits = torch.where(torch.isfinite(norms), (norms <= plan.bound).double() - 0.5, 0.0).sum()
        bits *= self.clipping.releases_bits  # what is not released is not sent
        numbers = torch.empty(len(total) + 1, dtype=torch.float64, device=total.device)
        unit, rounded = self._unit(plan), self._is_rounded(plan)
        for part, into in blocks(total, numbers[:-1]):
            put_on_lattice(part, unit, into) if rounded else into.copy_(part)
        numbers[-1] = bits / _BIT_LATTICE
        if self.shares:
            of_update, of_bits = self._noise_in_units(plan, self.shares)
            public = f"share of {hospital}, C {plan.clip_bound!r}, v {plan.intermediaries}"
            share = noise(numbers, public, len(numbers))
            share[:-1].mul_(of_update)
            share[-1:].mul_(of_bits)
            numbers += share.round_()
        return numbers, norms

    def opened(self, plan: RoundPlan, numbers: Tensor) -> tuple[Tensor, float]:
        """Converts a contribution's numbers back: the (d,) float64 sum of clipped updates, and that of bits.

        Apart from a share that the hospital added, they carry no noise: only for who knows them anyway.
        """
        return numbers[:-1] * self._unit(plan), float(numbers[-1]) * _BIT_LATTICE

    def decode(
        self,
        plan: RoundPlan,
        asked: Sequence[str],
        contributions: Iterable[Contribution],
        noise: NoiseSource,
        diagnostics: Mapping[str, Diagnostics] | None = None,
    ) -> tuple[Release, Unprotected | None]:
        """At the server: checks every answer, adds them up, adds the noise once, divides by a fixed number.

        Guarantee: the released mean is that of a Gaussian mechanism, whatever hospitals answer: each counts
        once and moves the sum by no more than an honest one could, and the denominator is the plan's.

        Args:
            plan: this round's plan; its v and C give the sensitivity.
            asked: names of the hospitals that were asked; any other answer is ignored.
            contributions: consumed one by one into a running sum.
            noise: the source of the round's noise.
            diagnostics: un-noised statistics by hospital, where the engine has them; read after the answers.

        Returns:
            The release, and beside it the un-noised statistics, where there are diagnostics.
        """
        total, absent, ignored = self._added_up(plan, asked, contributions)
        counted = set(asked) - absent.keys()
        if len(counted) < self.shares:
            raise InputError(
                f"round {plan.round}: {len(counted)} hospitals answered, and the noise is full with "
                f"{self.shares} (privacy.may_stay_away); nothing is released, go on when they are there"
            )
        size, unit, bound = len(plan.parameters), self._unit(plan), plan.bound
        denominator = self.expected_hospitals * plan.intermediaries  # N·v, whoever answered
        of_update, of_bits = self._noise_in_units(plan)
        hidden, bits = total[:size], total[size:].cpu() * _BIT_LATTICE
        known = {name: one for name, one in (diagnostics or {}).items() if name in counted}
        unhidden = hidden.mul(unit).to(plan.parameters.dtype) if known else None

        drawn = torch.zeros((), dtype=torch.float64, device=hidden.device).expand(size)
        if of_update and not self.shares:
            drawn = noise(hidden, f"model update, C {bound!r}, v {plan.intermediaries}", size)
        mean, squares = torch.empty_like(plan.parameters), torch.zeros_like(drawn[0])
        for part, steps, into in blocks(hidden, drawn, mean):
            steps = steps.mul(of_update).round_()
            squares += torch.dot(steps, steps)
            into.copy_(steps.add_(part).mul_(unit / denominator))
        # Where more hospitals answer than the noise needs, their shares add up to more than was counted.
        surplus = math.sqrt(len(counted) / self.shares) if self.shares else 1.0
        std = of_update * unit * surplus / denominator
        unprotected = None
        if unhidden is not None:
            unprotected = measured(unhidden, known, math.sqrt(float(squares)) * unit / denominator)

        released, fraction_below = {"model update": _digest(mean)}, None
        if self.clipping.releases_bits:
            steps = torch.zeros(1, dtype=torch.float64)
            if not self.shares:
                steps = noise(bits, "clip quantile", 1).mul_(of_bits).round_()
            fraction_below = (float(bits) + float(steps) * _BIT_LATTICE) / denominator + 0.5
            released["clip quantile"] = _digest(torch.tensor(fraction_below, dtype=torch.float64))
        # Derived again here: a plan without events must not lead to a release without any.
        estimates = any(event.released == "noise ratio" for event in plan.events)
        finite = bound if math.isfinite(bound) else None
        events = tuple(
            replace(event, clip_bound=finite, digest=released.get(event.released, ""))
            for event in self.events(plan.round, plan.intermediaries, bound, estimates)
        )
        return Release(mean, bound, std, fraction_below, events, absent, tuple(ignored)), unprotected

    def _added_up(
        self, plan: RoundPlan, asked: Sequence[str], contributions: Iterable[Contribution]
    ) -> tuple[Tensor, dict[str, str], list[tuple[str, str]]]:
        """Checks each answer and adds up those that count, each held to what an honest hospital can say.

        Returns:
            The (d + 1,) float64 sum, on the plan's device; the hospitals that were asked and do not count,
            with the reasons; and the same for answers that were not asked for.
        """
        total = torch.zeros(len(plan.parameters) + 1, dtype=torch.float64, device=plan.parameters.device)
        absent, ignored = dict.fromkeys(asked, "it did not answer"), []
        counted: set[str] = set()
        for answer in contributions:
            if not isinstance(answer, Contribution):
                ignored.append((f"{answer!r:.40}", "it is no contribution"))
                continue
            name = answer.hospital if isinstance(answer.hospital, str) else f"{answer.hospital!r:.40}"
            if (why := _unexpected(answer, plan, asked, counted)) is not None:
                ignored.append((name, why))
                continue
            why, length, bits = self._checked(plan, answer.numbers)
            if why is not None:
                absent[name] = why
            else:
                counted.add(name)
                del absent[name]
                total += self._limited(plan, answer.numbers.detach().to(total.device), length, bits)
        return total, absent, ignored

    def malformed(self, plan: RoundPlan, numbers: object) -> str | None:
        """Says why the numbers of an answer to this plan cannot be counted; None where they can."""
        return self._checked(plan, numbers)[0]

    def _checked(self, plan: RoundPlan, numbers: object) -> tuple[str | None, float, float]:
        """Reads an answer's numbers once, whatever they are.

        Returns:
            Why they cannot be counted, None where they can; the norm of all but the last; and the last. Both
            are NaN where nothing was read.
        """
        unread, expected = (math.nan, math.nan), (len(plan.parameters) + 1,)
        if not isinstance(numbers, Tensor) or numbers.layout != torch.strided or numbers.is_meta:
            return "its update is no vector of numbers in double precision", *unread
        if numbers.dtype != torch.float64:
            return "its update is no vector of numbers in double precision", *unread
        if tuple(numbers.shape) != expected:
            return f"its update has shape {tuple(numbers.shape)} instead of {expected}", *unread
        numbers = numbers.detach()
        squares, fractions = torch.zeros(2, dtype=torch.float64, device=numbers.device)
        for (part,) in blocks(numbers[:-1]):
            squares += torch.dot(part, part)
            if self._is_rounded(plan):
                fractions += part.frac().abs_().sum()  # faster than asking each whether it is zero
        fractions += numbers[-1].frac().abs()
        # All at once: each number that is read from a GPU waits for it.
        squared, between, last = torch.stack([squares, fractions, numbers[-1]]).tolist()
        length = math.sqrt(squared)
        if not math.isfinite(length + last):
            return "its update is NaN or infinite", length, last
        return "its update is not of whole numbers" if between else None, length, last

    def _limited(self, plan: RoundPlan, numbers: Tensor, length: float, bits: float) -> Tensor:
        """Scales a dishonest contribution down to the largest that an honest hospital could make.

        Args:
            plan: whose C and v say how large that is.
            numbers: (d + 1,), see `Contribution`; not changed.
            length: norm of the first d.
            bits: the last one.
        """
        most = longest_sum(plan.bound, plan.intermediaries) / self._unit(plan)
        limit = plan.intermediaries / 2 / _BIT_LATTICE
        if self.shares:  # the numbers include a share of the noise, which hardly ever exceeds this
            of_update, of_bits = self._noise_in_units(plan, self.shares)
            most += of_update * (math.sqrt(len(numbers)) + _TAIL)
            limit += of_bits * _TAIL
        if length > most:
            numbers = numbers.clone()
            factor = clip_factor(torch.tensor(length, dtype=torch.float64), most)
            numbers[:-1] = numbers[:-1].mul(factor).trunc_()
        if abs(bits) > limit:
            numbers = torch.cat([numbers[:-1], numbers[-1:].clamp(-limit, limit)])
        return numbers

    def _noise_in_units(self, plan: RoundPlan, shares: int = 1) -> tuple[float, float]:
        """Standard deviations of a round's noise on the sums of updates and bits, in units of their lattices.

        The noise is scaled by what one intermediary can move these sums by. One centred bit moves its sum by
        ½, so a noise multiplier of z_b means a standard deviation of z_b/2.

        Args:
            plan: whose C and v give the sensitivity.
            shares: divides the variance, for one of so many hospitals' shares.
        """
        update, bit = self._multipliers
        moved = sensitivity(plan.bound, plan.intermediaries) if update else 0.0
        parts = math.sqrt(shares)
        return update * moved / self._unit(plan) / parts, bit / 2 / _BIT_LATTICE / parts

    def _unit(self, plan: RoundPlan) -> float:
        """The distance of neighbouring lattice points in a round; 1 where sums are not rounded."""
        return spacing(plan.bound, len(plan.parameters)) if self._is_rounded(plan) else 1.0

    def _is_rounded(self, plan: RoundPlan) -> bool:
        """Whether sums are rounded to a lattice: where noise hides them, and there is a bound."""
        return self.noise_multiplier > 0 and 0 < plan.bound < math.inf


def _unexpected(answer: Contribution, plan: RoundPlan, asked: Sequence[str], counted: set[str]) -> str | None:
    """Why an answer is not one that this round waits for; None where it is."""
    if answer.hospital not in asked:
        return "it answered without being asked"
    if answer.hospital in counted:
        return "it answered twice; the first answer counts"
    if type(answer.round) is not int or answer.round != plan.round:
        return f"it answered round {answer.round!r:.20} in round {plan.round}"
    return None if answer.plan == plan.digest else "it answered another plan"


def _digest(released: Tensor) -> str:
    """A release's name in the ledger: 128 bits of the SHA-256 of its bytes."""
    return hashlib.sha256(released.cpu().numpy().data).hexdigest()[:32]
