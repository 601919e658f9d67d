"""The bound against known mechanisms, other libraries' limits and exact sums.

Where a test draws, its tolerance follows from the variance: 4.5 standard deviations, so that no seed matters.
"""

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from silodp.privacy.lower_bound import Numbers, least_mu, lower_bound

NORMAL = NormalDist()


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("of", [2, 8, 40])
def test_right_guesses_show_what_clopper_and_pearson_leave_of_them(of: int, confidence: float) -> None:
    shown = least_mu(range(of + 1), of, confidence)
    for right in range(of + 1):
        # One-sided: only what lies below counts.
        limits = binomtest(right, of, alternative="greater").proportion_ci(confidence, method="exact")
        expected = 2 * NORMAL.inv_cdf(max(limits.low, 0.5))
        assert shown[right] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_no_mechanism_within_the_claim_is_refuted_too_often(confidence: float) -> None:
    """Exact, no draws: hits and right silences with any two chances whose mean is the most that μ allows."""
    counted = 20
    shown, counts = least_mu(range(2 * counted + 1), 2 * counted, confidence), np.arange(counted + 1)
    for mu in (0.0, 0.3, 1.0, 2.0, 3.5):
        mean = NORMAL.cdf(mu / 2)
        for apart in np.linspace(0, 1 - mean, 7):
            hits, silences = (binom.pmf(counts, counted, chance) for chance in (mean + apart, mean - apart))
            refuted = np.convolve(hits, silences)[shown > mu + 1e-9].sum()
            assert refuted <= 1 - confidence + 1e-12


def gaussian_worlds(
    chance: np.random.Generator, mu: float, runs: int, bits: float = 0.05
) -> tuple[Numbers, Numbers]:
    """Scores as an observer of two Gaussian releases has them: both, the first, the second."""
    shares = np.sqrt([1 - bits, bits])

    def world(mu: float) -> Numbers:
        seen = (chance.standard_normal((runs, 2)) + mu * shares) * shares
        return np.column_stack([seen.sum(1), seen])

    return world(mu), world(0.0)


@pytest.mark.parametrize("mu", [2 / 3, 2.0, 4.0])
def test_a_gaussian_mechanism_is_seldom_refuted_and_nearly_shown(mu: float) -> None:
    chance, audits = np.random.default_rng(1), 200
    bounds = [lower_bound(*gaussian_worlds(chance, mu, 500), "abc", 0.95).mu for _ in range(audits)]
    assert sum(bound > mu for bound in bounds) <= audits * 0.05 + 4.5 * math.sqrt(audits * 0.05 * 0.95)
    # 800 guesses: the right share has standard deviation √(p(1 − p)/800), and the limit is 1.645 of them low.
    share = NORMAL.cdf(mu / 2)
    slope = 2 / NORMAL.pdf(mu / 2) * math.sqrt(share * (1 - share) / 800)
    assert mu - np.median(bounds) == pytest.approx(1.645 * slope, abs=0.6 * slope + 0.03)


def test_a_score_without_noise_replaces_the_one_that_should_be_best() -> None:
    present, absent = gaussian_worlds(np.random.default_rng(2), 0.5, 100)
    present[:, 2], absent[:, 2] = 1.0, 0.0
    bound = lower_bound(present, absent, "abc", 0.95)
    assert (bound.score, bound.mu) == ("c", bound.most)


def test_no_signal_shows_nothing() -> None:
    chance, nothing = np.random.default_rng(3), np.zeros((50, 3))
    assert lower_bound(nothing, nothing, "abc", 0.95).mu == 0
    bounds = [lower_bound(*gaussian_worlds(chance, 0.0, 100), "abc", 0.95).mu for _ in range(100)]
    assert sum(bound > 0 for bound in bounds) <= 5 + 4.5 * math.sqrt(100 * 0.05 * 0.95)


@pytest.mark.parametrize("sign", [1, -1])
def test_perfect_guesses_show_the_most(sign: int) -> None:
    present, absent = np.full((100, 1), sign * 1.0), np.full((100, 1), sign * -1.0)
    bound = lower_bound(present, absent, ["x"], 0.95)
    assert bound.mu == bound.most == pytest.approx(2 * NORMAL.inv_cdf(0.05 ** (1 / 160)))
    assert (bound.true_positives, bound.with_canary) == (80, 80)  # the first twenty of each kind chose
    assert (bound.false_positives, bound.without_canary) == (0, 80)


def test_runs_that_choose_are_not_counted() -> None:
    """Else the choice would fit the chance that it is judged by."""
    present, absent = gaussian_worlds(np.random.default_rng(4), 2.0, 100)
    before = lower_bound(present, absent, "abc", 0.95)
    present[:20], absent[:20] = np.sort(present[:20])[::-1], np.sort(absent[:20])  # same medians
    assert lower_bound(present, absent, "abc", 0.95).with_canary == before.with_canary == 80
    present[:20], absent[:20] = present[:20] - 100, absent[:20] + 100  # now the sign is chosen wrongly
    assert lower_bound(present, absent, "abc", 0.95).mu == 0


def test_unequal_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="5 federations with the canary, 6 without"):
        lower_bound(np.zeros((5, 1)), np.zeros((6, 1)), ["x"], 0.95)
