"""How many intermediaries: noise against diversity (Eq. 2), and the rules that choose v (Eq. 3).

A rule is one class: its settings, its code, and what ε does not cover.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from silodp.settings import Count, Rule


def closed_form(noise_multiplier: float, parameters: int, hospitals: float) -> float:
    """v* = sqrt(z·√d / N), where the adaptive rule settles if C is the median norm. Needs no data."""
    return math.sqrt(noise_multiplier * math.sqrt(parameters) / hospitals)


@dataclass(frozen=True)
class Ratio:
    """The paper's Eq. 2: noise level ξ, diversity φ and their ratio λ.

    All three come from un-noised norms, so no ε covers them.
    """

    noise_norm: float  # ‖ζ‖, of the noise that reaches the mean
    sum_of_norms: float  # Σ‖Δ_ij‖, before clipping
    norm_of_sum: float  # ‖ΣΔ̂_ij‖, after clipping

    @property
    def xi(self) -> float:
        return self.noise_norm / self.norm_of_sum if self.norm_of_sum else math.inf

    @property
    def phi(self) -> float:
        return self.sum_of_norms / self.norm_of_sum if self.norm_of_sum else math.inf

    @property
    def lambda_(self) -> float:
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
    """Images that an intermediary needs; BatchNorm needs two."""

    @property
    def uncovered(self) -> str:
        return f"v: from un-noised norms (intermediaries.rule = {self.rule})" if self.reads_norms else ""

    @property
    def asked(self) -> int | None:
        """The v that the settings name for round one: more than hospitals have images for is refused.

        None where the rule finds v itself, which is capped then.
        """
        return None

    def first_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        """v of round one, before any cap.

        Args:
            noise_multiplier: z; without noise there is nothing to harmonise.
            parameters: d, of the model.
            hospitals: expected in a round.
        """
        raise NotImplementedError

    def settled_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        """Where v goes, before any cap, as far as that can be said before a run."""
        return self.first_count(noise_multiplier, parameters, hospitals)

    def reads(self, round_: int) -> bool:
        """Whether the rule reads this round's un-noised ratio. If so, round one only measures."""
        return self.reads_norms and self.estimates(round_)

    def estimates(self, round_: int) -> bool:
        """In which rounds, for a rule that reads norms."""
        return True

    def next_count(self, count: int, round_: int, ratio: Ratio, hospitals: float) -> int:
        """v of the next round, before any cap, after a round that it estimates in."""
        return count


class FixedCount(IntermediaryRule):
    """v as it is given."""

    rule: Literal["fixed"] = "fixed"
    count: Count = 1

    @property
    def asked(self) -> int:
        return self.count

    def first_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        return self.count


class ClosedForm(IntermediaryRule):
    """v = √(z·√d/N), where the adaptive rule settles if C is the median norm. Needs no data."""

    rule: Literal["closed-form"] = "closed-form"

    def first_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        return max(1, math.floor(closed_form(noise_multiplier, parameters, hospitals)))


class Adaptive(IntermediaryRule):
    """v ← v·√(N·λ) after every round, so that λ goes to 1/N (Eq. 3). Reads un-noised norms."""

    reads_norms: ClassVar[bool] = True
    rule: Literal["adaptive"] = "adaptive"
    count: Count = 1
    """v of round one."""

    @property
    def uncovered(self) -> str:
        return f"v: estimated from un-noised norms (intermediaries.rule = {self.rule})"

    @property
    def asked(self) -> int:
        return self.count

    def first_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        return self.count

    def settled_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        return ClosedForm().first_count(noise_multiplier, parameters, hospitals)

    def next_count(self, count: int, round_: int, ratio: Ratio, hospitals: float) -> int:
        if not math.isfinite(ratio.lambda_):
            return count  # nobody answered: nothing was measured
        return self._moved(count, math.sqrt(hospitals * ratio.lambda_))

    def _moved(self, count: int, factor: float) -> int:
        return max(1, math.floor(factor * count))


class Initial(Adaptive):
    """Estimated after round one and kept."""

    rule: Literal["initial"] = "initial"  # type: ignore[assignment]

    def estimates(self, round_: int) -> bool:
        return round_ == 1


class Stable(Adaptive):
    """Grows by whole factors only, and shrinks at once."""

    rule: Literal["stable"] = "stable"  # type: ignore[assignment]

    def _moved(self, count: int, factor: float) -> int:
        return count * math.floor(factor) if factor >= 1 else super()._moved(count, factor)


class Progressive(Adaptive):
    """Goes half of the way up, and shrinks at once."""

    rule: Literal["progressive"] = "progressive"  # type: ignore[assignment]

    def _moved(self, count: int, factor: float) -> int:
        if factor >= 1:
            return count + math.floor((factor - 1) * count / 2)
        return super()._moved(count, factor)
