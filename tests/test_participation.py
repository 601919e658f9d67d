"""Who takes part: the shares that the plan promises, and chance from the secret only."""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
import torch
from scipy.stats import binomtest

from silodp.participation import ParticipationRule

SIX = ("a", "b", "c", "d", "e", "f")
DRAWS = 3_000
SECRET = f"{0x5EC2E7 << 200:064x}"


def rule(name: str, rate: float = 1.0) -> ParticipationRule:
    return ParticipationRule.of(rule=name, **({} if name == "all" else {"rate": rate}))


def draws(settings: ParticipationRule, hospitals: tuple[str, ...] = SIX) -> list[tuple[str, ...]]:
    return [settings.participants(hospitals, SECRET, number) for number in range(DRAWS)]


def close(count: int, probability: float) -> bool:
    """One binomial count in ten million is refused: the draws are many, the false alarms must be none."""
    return bool(binomtest(count, DRAWS, probability).pvalue > 1e-7)


def test_everyone_takes_part() -> None:
    assert rule("all").participants(SIX, SECRET, 1) == SIX


@pytest.mark.parametrize("rate", [0.2, 0.5, 2 / 3])
def test_poisson_draws_each_hospital_independently_at_its_rate(rate: float) -> None:
    drawn = draws(rule("poisson", rate))
    alone = Counter(name for chosen in drawn for name in chosen)
    together = Counter(pair for chosen in drawn for pair in combinations(chosen, 2))
    assert all(close(alone[name], rate) for name in SIX)
    assert all(close(together[pair], rate**2) for pair in combinations(SIX, 2))
    sizes = Counter(len(chosen) for chosen in drawn)
    assert all(close(sizes[k], math.comb(6, k) * rate**k * (1 - rate) ** (6 - k)) for k in range(7))


def test_poisson_at_rate_one_takes_everyone() -> None:
    assert set(draws(rule("poisson", 1.0))) == {SIX}


@pytest.mark.parametrize("name", ["poisson", "fraction"])
def test_participation_does_not_depend_on_the_order_of_hospitals(name: str) -> None:
    for order in (SIX, SIX[::-1]):
        drawn = draws(rule(name, 0.5), order)
        assert close(sum("a" in chosen for chosen in drawn), 0.5)
        assert all(chosen == tuple(h for h in order if h in chosen) for chosen in drawn)


def test_two_thirds_of_six_are_exactly_four() -> None:
    drawn = draws(rule("fraction", 2 / 3))
    assert {len(set(chosen)) for chosen in drawn} == {4}
    assert {len(set(chosen)) for chosen in draws(rule("fraction", 0.667))} == {4}
    assert len(set(drawn)) == math.comb(6, 4)
    alone = Counter(name for chosen in drawn for name in chosen)
    assert all(close(alone[name], 2 / 3) for name in SIX)


@pytest.mark.parametrize(
    ("name", "rate", "hospitals", "expected"),
    [
        ("all", 0.3, 6, 6),
        ("poisson", 0.3, 6, 1.8),
        ("poisson", 2 / 3, 6, 4),
        ("fraction", 2 / 3, 6, 4),
        ("fraction", 0.66, 6, 4),
        ("fraction", 0.5, 5, 2),
        ("fraction", 0.01, 6, 1),
        ("fraction", 1.0, 20, 20),
    ],
)
def test_expected_hospitals_and_the_chance_of_each(
    name: str, rate: float, hospitals: int, expected: float
) -> None:
    """A hundredth of six hospitals is one of them: a chance of 1/6, which the accountant must hear."""
    chosen = rule(name, rate)
    assert chosen.expected_hospitals(hospitals) == pytest.approx(expected)
    assert chosen.sampling_rate(hospitals) == pytest.approx(expected / hospitals)


@pytest.mark.parametrize("name", ["poisson", "fraction"])
def test_the_secret_alone_decides_and_all_its_bits_count(name: str) -> None:
    """Secrets that differ in any one of 256 bits draw other hospitals: 32 bits would be guessed."""
    torch.manual_seed(1)
    first = draws(rule(name, 0.5))
    torch.manual_seed(2)
    assert draws(rule(name, 0.5)) == first
    assert len(set(first)) > 1
    drawn = set()
    for bit in range(0, 256, 15):
        secret = f"{int(SECRET, 16) ^ (1 << bit):064x}"
        drawn.add(tuple(rule(name, 0.5).participants(SIX, secret, number) for number in range(40)))
    assert len(drawn) == len(range(0, 256, 15))


@pytest.mark.parametrize("rate", [0.3, 1e-9, 1 - 2.0**-53, 5e-324])
def test_a_poisson_draw_has_exactly_its_chance(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all the numbers below 2^1088 exactly the share `rate` takes part: the chance is no rounded one."""
    limit = Fraction(rate) * 2**1088
    assert limit.denominator == 1
    for number, taken in ((int(limit) - 1, True), (int(limit), False), (0, True), (2**1088 - 1, False)):
        monkeypatch.setattr("silodp.noise.streams.secret_number", lambda *_, number=number: number)
        assert bool(rule("poisson", rate).participants(SIX, SECRET, 1)) == taken
    assert rule("poisson", rate).sampling_rate(6) == rate
