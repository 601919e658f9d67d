"""Who takes part in a round. Absence changes neither the denominator nor the sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from silodp.noise.streams import SECRET_BITS, secret_number
from silodp.settings import ParticipationSettings


def expected_hospitals(settings: ParticipationSettings, hospitals: int) -> float:
    """How many hospitals the plan expects in a round: public, fixed, whoever comes."""
    if settings.rule == "poisson":
        return settings.rate * hospitals
    if settings.rule == "fraction":
        return max(1, round(settings.rate * hospitals))
    return hospitals


def sampling_rate(settings: ParticipationSettings, hospitals: int) -> float:
    """The chance of one hospital's taking part in a round; under Poisson sampling to the last bit."""
    if settings.rule == "poisson":
        return settings.rate
    return min(1.0, expected_hospitals(settings, hospitals) / hospitals)


def participants(
    settings: ParticipationSettings, hospitals: Sequence[str], secret: str, round_: int
) -> tuple[str, ...]:
    """The hospitals asked in this round: everyone, each with a chance, or a fixed number drawn at random.

    Guarantee: with a secret of 256 random bits nobody can tell the draws beforehand or draw them again, and
    under Poisson sampling each hospital's chance is exactly `settings.rate`.
    """
    if settings.rule == "all":
        return tuple(hospitals)
    drawn = {name: secret_number(secret, "participation", round_, name) for name in hospitals}
    if settings.rule == "poisson":
        limit = Fraction(settings.rate) * 2**SECRET_BITS
        return tuple(name for name in hospitals if drawn[name] < limit)
    count = int(expected_hospitals(settings, len(hospitals)))
    chosen = sorted(hospitals, key=drawn.__getitem__)[:count]
    return tuple(name for name in hospitals if name in chosen)
