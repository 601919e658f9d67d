"""The exact Gaussian formulas against sixty digits, and against each other."""

import math

import mpmath
import pytest
from exact_figures import exact_delta
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from silodp.privacy.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    log_normal,
    mixture_epsilon,
)

powers = st.floats(-2, 3).map(lambda x: 10.0**x)
deltas = st.floats(-8, -0.5).map(lambda x: 10.0**x)


@settings(max_examples=100, deadline=None)
@given(mu=st.floats(-3, 4).map(lambda x: 10.0**x), delta=st.floats(-12, -0.05).map(lambda x: 10.0**x))
def test_epsilon_keeps_delta_and_no_smaller_one_does_in_sixty_digits(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0:
        assert exact_delta(mu, 0) <= delta
    else:
        assert exact_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)
        assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.floats(-40, 5), st.floats(-2, 6).map(lambda power: -(10.0**power))))
@example(-1.0)
@example(-36.0)
@example(-math.nextafter(36.0, 37.0))
def test_the_logarithm_of_the_normal_distribution_to_the_last_digits(x: float) -> None:
    with mpmath.workdps(60):
        exact = mpmath.log(mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2)
        assert abs(log_normal(x) - exact) <= abs(exact) * 1e-14


def test_the_logarithm_at_the_ends() -> None:
    assert (log_normal(-math.inf), log_normal(-1e200), log_normal(math.inf)) == (-math.inf, -math.inf, 0)


@settings(max_examples=50, deadline=None)
@given(mu=powers, epsilon=st.floats(0, 100))
def test_delta_at_any_epsilon_in_sixty_digits(mu: float, epsilon: float) -> None:
    assert gaussian_delta(mu, epsilon) == pytest.approx(exact_delta(mu, epsilon), rel=1e-7, abs=1e-300)


@settings(max_examples=50, deadline=None)
@given(mu=powers, more=st.floats(1.01, 3), delta=deltas)
def test_less_noise_and_less_delta_cost_more(mu: float, more: float, delta: float) -> None:
    assert gaussian_epsilon(mu * more, delta) >= gaussian_epsilon(mu, delta)
    assert gaussian_epsilon(mu, delta / more) >= gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, 1.0) >= gaussian_delta(mu, 1.0 + more) >= 0


@settings(max_examples=50, deadline=None)
@given(mu=powers, delta=deltas)
def test_mu_of_epsilon_of_mu_is_mu(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon > 0:
        assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-6)


@pytest.mark.parametrize(("rounds", "rate", "square"), [(10, 0.3, 0.5), (100, 2 / 3, 0.04), (40, 0.05, 1.0)])
def test_a_mixture_is_the_mean_delta_over_a_binomial(rounds: int, rate: float, square: float) -> None:
    epsilon = mixture_epsilon([(square, rounds)], rate, 0.01)
    taken = range(1, rounds + 1)
    mean = sum(binom.pmf(k, rounds, rate) * exact_delta(math.sqrt(k * square), epsilon) for k in taken)
    assert mean == pytest.approx(0.01, rel=1e-6)


def test_a_mixture_of_unlike_rounds_is_bounded_from_above_and_closely() -> None:
    kinds, rate, delta = [(0.5, 3), (0.02, 5), (1.1, 2)], 0.4, 0.03
    epsilon = mixture_epsilon(kinds, rate, delta)

    def true_delta(at: float) -> float:
        total = 0.0
        for a in range(4):
            for b in range(6):
                for c in range(3):
                    chance = binom.pmf(a, 3, rate) * binom.pmf(b, 5, rate) * binom.pmf(c, 2, rate)
                    if a + b + c:
                        total += chance * exact_delta(math.sqrt(a * 0.5 + b * 0.02 + c * 1.1), at)
        return total

    assert true_delta(epsilon) <= delta
    assert true_delta(epsilon * 0.99) > delta


def test_a_mixture_in_which_everyone_takes_part_is_the_composition() -> None:
    for kinds in ([(0.25, 8)], [(0.25, 8), (0.5, 4)]):
        mu = math.sqrt(sum(square * count for square, count in kinds))
        assert mixture_epsilon(kinds, 1.0, 1e-3) == pytest.approx(gaussian_epsilon(mu, 1e-3), rel=2e-3)


def test_no_noise_has_no_epsilon() -> None:
    assert gaussian_epsilon(math.inf, 0.1) == math.inf
    assert gaussian_epsilon(0.0, 0.1) == 0.0


@pytest.mark.parametrize("kinds", [65, 2048, 2100])
def test_a_mixture_of_very_many_kinds_is_still_a_bound(kinds: int) -> None:
    squares = [(0.1 + 0.001 * number, 1) for number in range(kinds)]
    epsilon = mixture_epsilon(squares, 0.5, 0.01)
    least, most = squares[0][0], squares[-1][0]
    assert (
        mixture_epsilon([(least, kinds)], 0.5, 0.01) < epsilon < mixture_epsilon([(most, kinds)], 0.5, 0.01)
    )
    mean = sum(square for square, _ in squares) / kinds
    assert mixture_epsilon([(mean, kinds)], 0.5, 0.01) <= epsilon * 1.001
    assert epsilon < 1.15 * mixture_epsilon([(mean, kinds)], 0.5, 0.01)


@pytest.mark.parametrize("kinds", [65, 130, 1000])
def test_very_many_kinds_far_apart_are_bounded_from_above(kinds: int) -> None:
    """Where everyone takes part the truth is known: μ² = Σ μ_t²."""
    squares = [(0.01 * 100 ** (number / kinds), 1) for number in range(kinds)]
    truth = gaussian_epsilon(math.sqrt(sum(square for square, _ in squares)), 0.01)
    assert truth <= mixture_epsilon(squares, 1.0, 0.01) <= 1.2 * truth
