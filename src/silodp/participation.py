"""Who takes part in a round. Absence changes neither the denominator nor the sensitivity.

A rule is one class: its settings, its code, and how accountants know it.
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
    """Only the first so many hospitals of the cohort train; the others only lend their validation and test
    images. By default all."""

    def training(self, hospitals: Sequence[T]) -> Sequence[T]:
        """Those of a cohort's hospitals that train."""
        return hospitals[: self.members]

    def expected_hospitals(self, hospitals: int) -> float:
        """How many of so many members the plan expects in a round: public, fixed, whoever comes."""
        raise NotImplementedError

    def sampling_rate(self, hospitals: int) -> float:
        """The chance of one hospital's taking part in a round."""
        return min(1.0, self.expected_hospitals(hospitals) / hospitals)

    def participants(self, hospitals: Sequence[str], secret: str, round_: int) -> tuple[str, ...]:
        """The hospitals asked in this round, in their order.

        Guarantee: with a secret of 256 random bits nobody can tell the draws beforehand or draw them again.
        """
        raise NotImplementedError

    def accounted_as(self, *, stateful: bool) -> Participation:
        """What the events call it; `stateful`: hospitals keep optimizer states across rounds."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        """How hospitals are drawn, for a reader; empty where all take part."""
        return ""


class Everyone(ParticipationRule):
    """All members in every round."""

    rule: Literal["all"] = "all"

    def expected_hospitals(self, hospitals: int) -> float:
        return hospitals

    def participants(self, hospitals: Sequence[str], secret: str, round_: int) -> tuple[str, ...]:
        return tuple(hospitals)

    def accounted_as(self, *, stateful: bool) -> Participation:
        return "all"


class Poisson(ParticipationRule):
    """Each member with the same chance, independently: to the last bit `rate`."""

    rule: Literal["poisson"] = "poisson"
    rate: Rate = 1.0

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
    """A fixed number of members, drawn without replacement."""

    rule: Literal["fraction"] = "fraction"
    rate: Rate = 1.0

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
    from silodp.noise.streams import secret_number

    return {name: secret_number(secret, "participation", round_, name) for name in hospitals}
