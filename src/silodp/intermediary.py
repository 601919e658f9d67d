"""How many intermediaries: noise against diversity (Eq. 2), and the rules that choose v (Eq. 3).

With every hospital split into v, the paper finds ξ_v = ξ/v and φ_v = v·φ (Eq. 3), hence λ_v = λ/v², and the
best results where λ_v is about 1/N. So v = √(N·λ); from a λ_v measured at the present v it is v ← v·√(N·λ_v).

A rule is one class: its settings, its code, and what ε does not cover of it. Add one by subclassing
`IntermediaryRule` in any file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from silodp.settings import Count, Rule


def closed_form(noise_multiplier: float, parameters: int, hospitals: float) -> float:
    """v* = sqrt(z·√d / N), the fixed point of the adaptive rule if C is the median norm; needs no data.

    It is not in the paper: at λ = 1/N with ‖ζ‖ = z·C·√d/(N·v), the norm of the noise on the mean, and
    Σ‖Δ_ij‖ = N·v·C, Eq. 2 gives z·√d/(N·v)² = 1/N.

    Args:
        noise_multiplier: z.
        parameters: d, the number of trainable parameters.
        hospitals: N, the expected number of hospitals in a round.
    """
    return math.sqrt(noise_multiplier * math.sqrt(parameters) / hospitals)


@dataclass(frozen=True)
class Ratio:
    """The paper's Eq. 2: noise level ξ, diversity φ and their ratio λ.

    All three come from un-noised norms, so no ε covers them. Where nobody answered they are infinite.
    """

    noise_norm: float  # ‖ζ‖, of the noise that reaches the mean
    sum_of_norms: float  # Σ‖Δ_ij‖, before clipping
    norm_of_sum: float  # ‖ΣΔ̂_ij‖, after clipping

    @property
    def xi(self) -> float:
        """ξ = ‖ζ‖ / ‖ΣΔ̂_ij‖: falls with 1/v."""
        return self.noise_norm / self.norm_of_sum if self.norm_of_sum else math.inf

    @property
    def phi(self) -> float:
        """φ = Σ‖Δ_ij‖ / ‖ΣΔ̂_ij‖: 1 if all updates point the same way and none is clipped; grows with v."""
        return self.sum_of_norms / self.norm_of_sum if self.norm_of_sum else math.inf

    @property
    def lambda_(self) -> float:
        """λ = ξ/φ = ‖ζ‖ / Σ‖Δ_ij‖, which the adaptive rules bring to 1/N."""
        return self.noise_norm / self.sum_of_norms if self.sum_of_norms else math.inf


class IntermediaryRule(Rule):
    """Into how many disjoint intermediaries each hospital is split (v).

    Guarantee: a rule sees nothing of the data unless it says that it `reads_norms`, un-noised, as the authors
    do; then the mechanism's events and every list beside an ε say so.
    """

    section: ClassVar[str] = "intermediaries"
    usual: ClassVar[str] = "closed-form"
    reads_norms: ClassVar[bool] = False
    rule: str
    min_samples: Annotated[int, Field(ge=1)] = 2
    """The fewest images that an intermediary may have; BatchNorm needs two."""

    @property
    def uncovered(self) -> str:
        if not self.reads_norms:
            return ""
        return f"v: estimated from un-noised norms (intermediaries.rule = {self.rule})"

    @property
    def asked(self) -> int | None:
        """v of round one where the settings name it; more than hospitals have images for is then refused.

        None where the rule computes v itself, which is then capped.
        """
        return None

    def first_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        """v of round one, before any cap: the one that is asked for, unless a rule computes it.

        Args:
            noise_multiplier: z.
            parameters: d, the number of trainable parameters.
            hospitals: N, the expected number of hospitals in a round.
        """
        if self.asked is None:
            raise NotImplementedError
        return self.asked

    def settled_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        """The v that a run is expected to settle at, before any cap: for estimates before it starts."""
        return self.first_count(noise_multiplier, parameters, hospitals)

    def reads(self, round_: int) -> bool:
        """Whether the rule reads this round's un-noised ratio. If so, round one only measures."""
        return self.reads_norms and self.estimates(round_)

    def estimates(self, round_: int) -> bool:
        """Whether a rule that reads norms estimates v after this round."""
        return True

    def next_count(self, count: int, round_: int, ratio: Ratio, hospitals: float) -> int:
        """v of the next round, before any cap.

        Args:
            count: v of this round.
            round_: its number, counted from 1.
            ratio: its un-noised ratio.
            hospitals: N, the expected number of hospitals in a round.
        """
        return count


class FixedCount(IntermediaryRule):
    """v is `count` in every round."""

    rule: Literal["fixed"] = "fixed"
    count: Count = 1
    """v; 1: hospitals are not split."""

    @property
    def asked(self) -> int:
        return self.count


class ClosedForm(IntermediaryRule):
    """v = √(z·√d/N), the fixed point of the adaptive rule if C is the median norm. Needs no data."""

    rule: Literal["closed-form"] = "closed-form"

    def first_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        return max(1, math.floor(closed_form(noise_multiplier, parameters, hospitals)))


class Adaptive(IntermediaryRule):
    """v ← v·√(N·λ) after every round, so that λ goes to 1/N (Eq. 3). Reads un-noised norms.

    The paper's rule. N is the number of hospitals, not of intermediaries, as in the authors' program.
    """

    reads_norms: ClassVar[bool] = True
    rule: Literal["adaptive"] = "adaptive"
    count: Count = 1
    """v of round one."""

    @property
    def asked(self) -> int:
        return self.count

    def settled_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        return ClosedForm().first_count(noise_multiplier, parameters, hospitals)

    def next_count(self, count: int, round_: int, ratio: Ratio, hospitals: float) -> int:
        if not math.isfinite(ratio.lambda_):
            return count  # nobody answered, so nothing was measured
        return self._moved(count, math.sqrt(hospitals * ratio.lambda_))

    def _moved(self, count: int, factor: float) -> int:
        """The v to which `factor` = √(N·λ) leads from `count`; each variant limits growth in its own way."""
        return max(1, math.floor(factor * count))


class Initial(Adaptive):
    """v is estimated after round one and then kept."""

    rule: Literal["initial"] = "initial"  # type: ignore[assignment]

    def estimates(self, round_: int) -> bool:
        return round_ == 1


class Stable(Adaptive):
    """As adaptive, but v grows by whole factors only."""

    rule: Literal["stable"] = "stable"  # type: ignore[assignment]

    def _moved(self, count: int, factor: float) -> int:
        return count * math.floor(factor) if factor >= 1 else super()._moved(count, factor)


class Progressive(Adaptive):
    """As adaptive, but v grows by half of the estimated step."""

    rule: Literal["progressive"] = "progressive"  # type: ignore[assignment]

    def _moved(self, count: int, factor: float) -> int:
        if factor >= 1:
            return count + math.floor((factor - 1) * count / 2)
        return super()._moved(count, factor)
