"""Where the clip bound C of Eq. 1 comes from, and how it changes from round to round.

C bounds the L2 norm of one intermediary's update; `local/clip.py` scales to it. The noise of a round has
standard deviation z·C with the very C that clipped the round, never the next one.

A rule is one class: its settings, its code, and what ε does not cover of it. The mechanism derives ledger
events from the class attributes. Add one by subclassing `ClippingRule` in any file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from silodp.settings import Positive, Rule

if TYPE_CHECKING:
    from torch import Tensor

MEDIAN_CAP = 25.0
"""The authors' program never lets the median bound exceed this."""


class ClippingRule(Rule):
    """The bound C on the L2 norm of one intermediary's update.

    Guarantee: a rule sees releases only, so whatever it computes from them costs no privacy. The exception is
    a rule that `reads_norms`, which are un-noised: the ledger and every list beside an ε then say so.

    Attributes:
        bounded: whether there is a C at all; without one, noise protects nobody.
        releases_bits: whether the noised fraction of norms ≤ C is released.
        reads_norms: whether C comes from the round's own un-noised norms; in process only.
    """

    section: ClassVar[str] = "clipping"
    usual: ClassVar[str] = "quantile"
    bounded: ClassVar[bool] = True
    releases_bits: ClassVar[bool] = False
    reads_norms: ClassVar[bool] = False
    rule: str

    @property
    def scales_up(self) -> bool:
        """Whether small updates are scaled up to norm C; the sensitivity is C either way."""
        return False

    @property
    def uncovered(self) -> str:
        return (
            f"the clip bound: from un-noised norms (clipping.rule = {self.rule})" if self.reads_norms else ""
        )

    def reach(self, round_: int) -> tuple[float, float]:
        """The smallest and the largest C that a round can have, whatever was released before it.

        A deployed hospital checks plans against this range. A rule that reads norms has none, and cannot be
        deployed.
        """
        bound = self.first_bound()
        return (math.inf, math.inf) if bound is None else (bound, bound)

    def first_bound(self) -> float | None:
        """C of round one; None where each round's norms give it."""
        raise NotImplementedError

    def next_bound(self, bound: float | None, fraction_below: float | None) -> float | None:
        """C of the next round.

        Args:
            bound: C of this round; None where the norms gave it.
            fraction_below: the released, noised fraction of updates with norm ≤ C; None where none was.
        """
        return bound

    def bound_of(self, norms: Tensor) -> float:
        """C of this round from the (n,) un-noised norms of its updates, for a rule that `reads_norms`."""
        raise NotImplementedError

    def multipliers(self, noise_multiplier: float) -> tuple[float, float]:
        """Divides a round's privacy: noise multipliers of the update and of the bits «norm ≤ C».

        z_u^-2 + z_b^-2 must not exceed z^-2, which the mechanism checks; z_b is 0 without bits.
        """
        return noise_multiplier, 0.0


class NoClipping(ClippingRule):
    """No bound: for runs without privacy."""

    bounded: ClassVar[bool] = False
    rule: Literal["none"] = "none"

    def first_bound(self) -> float:
        return math.inf


class FixedClipping(ClippingRule):
    """C is `bound` in every round."""

    rule: Literal["fixed"] = "fixed"
    bound: Positive = 1.0
    """C."""
    normalise: bool = False
    """Scale every update to norm C, small ones up as well."""

    @property
    def scales_up(self) -> bool:
        return self.normalise

    def first_bound(self) -> float:
        return self.bound


class RehearsedClipping(ClippingRule):
    """C is fixed, so that a round's noise is as large as the start tolerated in a rehearsal.

    The noise on the mean has norm z·C·√d/N. How much of it a start tolerates depends on the start, and hardly
    on ε or on the number of hospitals or parameters. A rehearsal uses generated hospitals, so C depends on
    nobody's data and costs no ε; see `runs/rehearsal.py`.
    """

    rule: Literal["rehearsed"] = "rehearsed"
    noise: Positive | None = None
    """The norm of a round's noise on the mean; by default from a rehearsal before round one."""
    bound: Positive | None = None
    """C; by default the noise's norm divided by z·√d/N. Written down when a run starts."""
    normalise: bool = False
    """Scale every update to norm C, small ones up as well."""

    @property
    def scales_up(self) -> bool:
        return self.normalise

    def first_bound(self) -> float:
        if self.bound is None:
            raise ValueError("clipping.bound is not resolved")
        return self.bound

    def bound_for(self, noise_multiplier: float, hospitals: float, numbers: int) -> float:
        """C with which the noise on the mean has the rehearsed norm.

        Args:
            noise_multiplier: z.
            hospitals: N, the expected number of hospitals in a round.
            numbers: d, the number of trainable parameters.
        """
        if self.noise is None or not noise_multiplier:
            raise ValueError("clipping.noise is not resolved, or there is none")
        return self.noise * hospitals / (noise_multiplier * math.sqrt(numbers))


class MedianClipping(ClippingRule):
    """C is the exact median of each round's norms, as in the authors' program. Not private.

    The paper cites Andrew et al. (2021), the private quantile: that is `QuantileClipping`.
    """

    reads_norms: ClassVar[bool] = True
    rule: Literal["median"] = "median"
    bound: Positive = 1.0
    """C of a round in which no hospital answers."""

    @property
    def uncovered(self) -> str:
        return "the clip bound: the exact median of the norms (clipping.rule = median)"

    def first_bound(self) -> None:
        return None

    def bound_of(self, norms: Tensor) -> float:
        return min(float(norms.median()), MEDIAN_CAP) if len(norms) else self.bound


class QuantileClipping(ClippingRule):
    """C follows a quantile of the norms through noised bits (Andrew et al. 2021).

    Each intermediary contributes one bit, whether its norm is at most C; b̃ is the noised mean of the bits.
    """

    releases_bits: ClassVar[bool] = True
    rule: Literal["quantile"] = "quantile"
    bound: Positive = 1.0
    """C of round one."""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """γ: the fraction of norms that C should be above."""
    learning_rate: Positive = 0.2
    """η: how fast C follows."""
    bit_share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of each round's privacy that is spent on the bits «norm ≤ C»."""

    def first_bound(self) -> float:
        return self.bound

    def next_bound(self, bound: float | None, fraction_below: float | None) -> float | None:
        """C·exp(−η(b̃ − γ)): if more than γ of the norms are below C, C is too large and shrinks."""
        if bound is None or fraction_below is None:
            return bound
        fraction = min(max(fraction_below, 0.0), 1.0)  # noise can push it out of this range
        return bound * math.exp(-self.learning_rate * (fraction - self.quantile))

    def reach(self, round_: int) -> tuple[float, float]:
        """Each round moves C by a factor between exp(−η(1 − γ)) and exp(ηγ)."""
        steps = self.learning_rate * (round_ - 1)
        low, high = -steps * (1 - self.quantile), steps * self.quantile
        return self.bound * math.exp(max(low, -600.0)), self.bound * math.exp(min(high, 600.0))

    def multipliers(self, noise_multiplier: float) -> tuple[float, float]:
        """The bits get the share s of z^-2.

        Two Gaussian releases with multipliers z_u and z_b together are one with z, where z^-2 = z_u^-2 +
        z_b^-2. One bit, centred, moves their sum by ½, so the noise on that sum is σ_b = z_b/2, and
        z_u = (z^-2 − (2σ_b)^-2)^-½ as in Andrew et al.
        """
        if noise_multiplier == 0:
            return 0.0, 0.0
        return noise_multiplier / math.sqrt(1 - self.bit_share), noise_multiplier / math.sqrt(self.bit_share)
