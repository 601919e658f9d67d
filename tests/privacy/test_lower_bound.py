"""The bound against known mechanisms and scipy's limits.

All chance is seeded, so these tests give the same answer every time; comments say how likely an unlucky seed
would have been.
"""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.lower_bound import clopper_pearson, lower_bound


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("of", [1, 7, 40])
def test_limits_are_those_of_clopper_and_pearson(of: int, confidence: float) -> None:
    low, high = clopper_pearson(range(of + 1), of, confidence)
    for count in range(of + 1):
        exact = binomtest(count, of).proportion_ci(confidence, method="exact")
        assert (low[count], high[count]) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_bound_is_below_the_epsilon_of_a_gaussian_mechanism_and_says_something() -> None:
    chance, delta = np.random.default_rng(1), 0.1
    for mu, least in ((1.0, 0.25), (2.0, 1.5)):
        exact = gaussian_epsilon(mu, delta)
        bounds = [
            lower_bound(
                chance.normal(mu, 1, (500, 1)), chance.normal(0, 1, (500, 1)), ["x"], delta, 0.95
            ).epsilon
            for _ in range(100)
        ]
        # The bound is valid in 95 of 100 cases at least; thresholds are seldom the best ones, so in more.
        assert sum(bound > exact for bound in bounds) <= 5
        assert np.median(bounds) > least


def test_bound_covers_where_it_can_be_tight() -> None:
    """Randomised response: the one useful threshold has exactly ε, so nothing but the limits is between."""
    chance, epsilon = np.random.default_rng(2), 1.0
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    bounds = []
    for _ in range(300):
        present, absent = (chance.random((400, 1)) < rate for rate in (honest, 1 - honest))
        bounds.append(lower_bound(present.astype(float), absent.astype(float), ["x"], 0.0, 0.95).epsilon)
    # More than 5 % of 300 plus three standard deviations: below 1 in 700 if the limits were just exact.
    assert sum(bound > epsilon for bound in bounds) <= 26
    assert np.median(bounds) > 0.5


def test_no_signal_shows_nothing() -> None:
    chance, nothing = np.random.default_rng(3), np.zeros((50, 3))
    assert lower_bound(nothing, nothing, "abc", 0.01, 0.95).epsilon == 0
    bounds = [
        lower_bound(chance.normal(size=(200, 3)), chance.normal(size=(200, 3)), "abc", 0.01, 0.95).epsilon
        for _ in range(100)
    ]
    assert sum(bound > 0 for bound in bounds) <= 5


@pytest.mark.parametrize("sign", [1, -1])
def test_perfect_guesses_show_the_most(sign: int) -> None:
    present, absent = np.full((200, 1), sign * 1.0), np.full((200, 1), sign * -1.0)
    bound = lower_bound(present, absent, ["x"], 0.01, 0.95)
    wrong = 1 - 0.025 ** (1 / 100)  # 100 of each kind were counted
    assert bound.epsilon == bound.most == pytest.approx(math.log((1 - wrong - 0.01) / wrong))
    assert (bound.true_positives, bound.with_canary) == (100, 100)
    assert (bound.false_positives, bound.without_canary) == (0, 100)
