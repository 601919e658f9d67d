"""The sense of scale that a page gives to an ε."""

import math

import pytest
from scipy.stats import norm

from silodp.privacy.gaussian import gaussian_epsilon
from silodp.report.promise import chance, detection, strength


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-5])
def test_no_observer_of_the_gaussian_mechanism_hits_more(mu: float, delta: float) -> None:
    """The best test of N(0, 1) against N(μ, 1) at 1 % false alarms hits Φ(μ − Φ⁻¹(0.99))."""
    best = norm.cdf(mu - norm.ppf(0.99))
    assert best <= detection(gaussian_epsilon(mu, delta), delta) + 1e-12


def test_closed_forms() -> None:
    assert detection(0.0, 0.0) == pytest.approx(0.01)
    assert detection(1.0, 0.05) == pytest.approx(0.05 + math.e * 0.01)
    assert detection(6.0, 0.1) == pytest.approx(1 - math.exp(-6) * 0.89)
    assert detection(3635.0, 0.1) == 1
    assert detection(math.inf, 0.1) == 1


def test_words_grow_weaker() -> None:
    words = [strength(epsilon) for epsilon in (0.5, 1.0, 2.0, 5.0, 50.0, 101.0, 4000.0, math.inf)]
    assert words == [
        "strong", "strong", "moderate", "weak", "very weak", "almost nothing", "almost nothing", "none",
    ]  # fmt: skip


def test_delta_as_a_chance() -> None:
    assert [chance(delta) for delta in (0.1, 0.01, 0.3)] == ["1 in 10", "1 in 100", "1 in 3"]
