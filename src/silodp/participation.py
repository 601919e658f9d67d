"""Who takes part in a round. Absence changes neither the denominator nor the sensitivity.

N of Eq. 1 is `expected_hospitals`: fixed beforehand, for how many really took part is private.

A rule is one class: its settings, its code, and what accountants take it for. Add one by subclassing
`ParticipationRule` in any file.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field

from silodp.privacy.events import Participation
from silodp.settings import Count, Rule

Rate = Annotated[float, Field(gt=0, le=1)]
T = TypeVar("T")


class ParticipationRule(Rule):
    """Which hospitals train at all, and which of them take part in a round."""

    section: ClassVar[str] = "participation"
    usual: ClassVar[str] = "all"
    rule: str
    members: Count | None = None
    """How many of the cohort's hospitals train, the first ones; the others only provide validation and test
    images. By default all."""

    def training(self, hospitals: Sequence[T]) -> Sequence[T]:
        """Those of a cohort's hospitals that train."""
        return hospitals[: self.members]

    def expected_hospitals(self, hospitals: int) -> float:
        """The expected number of participants of a round, out of so many members: public and fixed."""
        raise NotImplementedError

    def sampling_rate(self, hospitals: int) -> float:
        """The probability that one hospital takes part in a round."""
        return min(1.0, self.expected_hospitals(hospitals) / hospitals)

    def participants(self, hospitals: Sequence[str], secret: str, round_: int) -> tuple[str, ...]:
        """Names of the hospitals asked in this round, in their order.

        Guarantee: without the secret, 256 random bits, nobody can predict or repeat the draw.
        """
        raise NotImplementedError

    def accounted_as(self, *, stateful: bool) -> Participation:
        """The rule's name in ledger events, by which accountants treat it.

        Args:
            stateful: whether hospitals keep optimizer states across rounds.
        """
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        """A description for readers of how hospitals are drawn; empty where all take part."""
        return ""


class Everyone(ParticipationRule):
    """All members take part in every round."""

    rule: Literal["all"] = "all"

    def expected_hospitals(self, hospitals: int) -> float:
        return hospitals

    def participants(self, hospitals: Sequence[str], secret: str, round_: int) -> tuple[str, ...]:
        return tuple(hospitals)

    def accounted_as(self, *, stateful: bool) -> Participation:
        return "all"


class Poisson(ParticipationRule):
    """Each member takes part independently with probability `rate`, exactly.

    Drawing amplifies a hospital's privacy, but not an intermediary's as if that were drawn by itself: its
    siblings in the same sum may show that it was.
    """

    rule: Literal["poisson"] = "poisson"
    rate: Rate = 1.0
    """Probability that a hospital takes part in a round."""

    def expected_hospitals(self, hospitals: int) -> float:
        return self.rate * hospitals

    def sampling_rate(self, hospitals: int) -> float:
        return self.rate

    def participants(self, hospitals: Sequence[str], secret: str, round_: int) -> tuple[str, ...]:
        from silodp.noise.streams import SECRET_BITS

        drawn, limit = _drawn(hospitals, secret, round_), Fraction(self.rate) * 2**SECRET_BITS
        return tuple(name for name in hospitals if drawn[name] < limit)

    def accounted_as(self, *, stateful: bool) -> Participation:
        return "poisson"

    @property
    def in_words(self) -> str:
        return f"poisson, {self.rate:g}"


class FixedFraction(ParticipationRule):
    """A fixed number of members takes part, drawn without replacement.

    Where hospitals keep optimizer states, the proof of amplification does not hold, and accountants count as
    if it were known who took part.
    """

    rule: Literal["fraction"] = "fraction"
    rate: Rate = 1.0
    """Share of the hospitals that takes part in a round."""

    def expected_hospitals(self, hospitals: int) -> float:
        return max(1, round(self.rate * hospitals))

    def participants(self, hospitals: Sequence[str], secret: str, round_: int) -> tuple[str, ...]:
        drawn, count = _drawn(hospitals, secret, round_), int(self.expected_hospitals(len(hospitals)))
        chosen = sorted(hospitals, key=drawn.__getitem__)[:count]
        return tuple(name for name in hospitals if name in chosen)

    def accounted_as(self, *, stateful: bool) -> Participation:
        return "fraction-kept" if stateful else "fraction"

    @property
    def in_words(self) -> str:
        return f"fraction, {self.rate:g}"


def _drawn(hospitals: Sequence[str], secret: str, round_: int) -> dict[str, int]:
    """Uniform whole numbers below 2^`SECRET_BITS` by hospital, which follow from name, round and secret."""
    from silodp.noise.streams import secret_number

    return {name: secret_number(secret, "participation", round_, name) for name in hospitals}
