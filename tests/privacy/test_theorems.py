"""The paper's theorems against enumeration, mpmath and simulated training."""

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from exact_figures import PAPER, PAPER_SPLIT, exact_delta
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from silodp.errors import InputError
from silodp.privacy import theorems
from silodp.privacy.events import NEIGHBOURS, Neighbours
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.theorems import Guarantee

Array = np.ndarray[Any, np.dtype[np.float64]]
law = settings(max_examples=60, deadline=None)
epsilons = st.floats(0, 5)
deltas = st.floats(-8, -0.3).map(lambda x: 10.0**x)


def divergence(first: Sequence[float], second: Sequence[float], epsilon: float) -> float:
    """The least δ for which Pr[first ∈ S] ≤ e^ε Pr[second ∈ S] + δ for all S, by enumeration of outcomes."""
    return sum(max(0.0, p - math.exp(epsilon) * q) for p, q in zip(first, second, strict=True))


def length(x: Array) -> Array:
    return np.sqrt(np.einsum("...i,...i->...", x, x))  # type: ignore[no-any-return]


def clip(x: Array, bound: float) -> Array:
    return x / np.maximum(1.0, length(x)[..., None] / bound)


# Theorem 1: from clients to sub-clients


@law
@given(epsilon=epsilons, delta=deltas)
def test_a_replaced_sub_client_has_its_clients_guarantee_a_removed_one_that_of_two(
    epsilon: float, delta: float
) -> None:
    assert theorems.preserved_at_sub_clients(epsilon, delta) == Guarantee(epsilon, delta)
    removed = theorems.preserved_at_sub_clients(epsilon, delta, "add-or-remove")
    assert removed.epsilon == 2 * epsilon
    assert removed.delta == pytest.approx(min(1.0, delta * (1 + math.exp(epsilon))), rel=1e-12)


def test_taking_out_a_sub_client_can_move_the_sum_twice_as_far_as_taking_out_its_client() -> None:
    bound, z, epsilon = 1.0, 1.0, 1.0
    sub_clients = np.array([[3.0], [-1.0]])
    whole, rest = clip(sub_clients.sum(0), bound), clip(sub_clients[1], bound)
    client_moves, sub_client_moves = float(length(whole)), float(length(whole - rest))
    assert (client_moves, sub_client_moves) == (bound, 2 * bound)
    promised = exact_delta(client_moves / z, epsilon)
    assert exact_delta(sub_client_moves / z, epsilon) > 2 * promised  # the same (ε, δ) does not hold
    kept = theorems.preserved_at_sub_clients(epsilon, promised, "add-or-remove")
    assert exact_delta(sub_client_moves / z, kept.epsilon) <= kept.delta


@law
@given(noise=st.floats(0.2, 5), client=st.floats(0.1, 5), share=st.floats(0.05, 1), epsilon=st.floats(0, 4))
def test_a_sub_client_is_protected_no_worse_than_its_client(
    noise: float, client: float, share: float, epsilon: float
) -> None:
    seen = theorems.gaussian_levels(noise, client, client * share, epsilon)
    assert seen.sub_client <= seen.client * (1 + 1e-6) + 1e-14  # rounding, as below
    assert seen.client == pytest.approx(exact_delta(client / noise, epsilon), rel=1e-6, abs=1e-14)
    assert seen.sub_client == pytest.approx(exact_delta(client * share / noise, epsilon), rel=1e-6, abs=1e-14)


@pytest.mark.parametrize(("neighbours", "sides"), [("add-or-remove", 1), ("replace-one", 2)])
def test_split_multipliers_are_noise_over_what_really_moves(neighbours: Any, sides: int) -> None:
    rng = np.random.default_rng(3)
    z, bound, v, most = 0.7, 1.3, 6, np.zeros(2)
    for spread in [0.0, *rng.uniform(0, 5, 200)]:  # without spread all updates agree: the worst case
        updates = clip(np.array([9.0, 0, 0]) + spread * rng.normal(size=(v, 3)), bound)
        others = clip(np.array([-9.0, 0, 0]) + spread * rng.normal(size=(v, 3)), bound) * (sides - 1)
        moved = updates - others
        most = np.maximum(most, [length(moved.sum(0)), length(moved).max()])
    seen = theorems.split_noise_multipliers(z, v, neighbours)
    assert [seen.client, seen.sub_client] == pytest.approx(list(z * bound / most))


@pytest.mark.parametrize(("z", "v", "delta", "hospital", "intermediary"), PAPER_SPLIT)
def test_the_papers_figure_does_not_protect_a_hospital(
    z: float, v: int, delta: float, hospital: float, intermediary: float
) -> None:
    # A hundred rounds are one release with a tenth of the noise.
    at_paper = theorems.gaussian_levels(z / 10, v, 1.0, intermediary)
    assert at_paper.sub_client == pytest.approx(delta, rel=0.01)
    assert at_paper.client > 0.999999
    assert theorems.gaussian_levels(z / 10, v, 1.0, hospital).client == pytest.approx(delta, rel=0.01)
    multipliers = theorems.split_noise_multipliers(z, v)
    assert round(gaussian_epsilon(10 / multipliers.client, delta), 1) == hospital
    assert round(gaussian_epsilon(10 / multipliers.sub_client, delta), 1) == intermediary


# Group privacy


@law
@given(
    epsilon=st.one_of(
        epsilons, st.floats(-12, -3).map(lambda x: 10.0**x), st.floats(-12, -3).map(lambda x: 1 + 10.0**x)
    ),
    n=st.integers(1, 12),
)
@example(epsilon=0.0, n=7)
@example(epsilon=1.0, n=7)
def test_both_forms_are_the_sums_that_they_stand_for(epsilon: float, n: int) -> None:
    delta = 1e-40
    with mpmath.workdps(60):
        e = mpmath.mpf(epsilon)
        right, paper = (mpmath.fsum(r**i for i in range(n)) for r in (mpmath.exp(e), e))
        ratio = float(right / paper)
    forms = {theorems.group_privacy: right, theorems.paper_group_privacy: paper}
    for form, total in forms.items():
        seen = form(epsilon, delta, n)
        assert seen.epsilon == n * epsilon
        assert seen.delta == pytest.approx(delta * float(total), rel=1e-12)
    assert theorems.group_privacy_ratio(epsilon, n) == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "n"), [(1e6, 2), (1.0, 10**6), (700.0, 100), (1e300, 10**9)])
def test_large_groups_get_a_vacuous_delta_and_no_overflow(epsilon: float, n: int) -> None:
    assert theorems.group_privacy(epsilon, 1e-9, n).delta == 1.0
    assert theorems.group_privacy(epsilon, 0.0, n).delta == 0.0
    assert theorems.paper_group_privacy(epsilon, 1.0, n).delta == 1.0
    assert theorems.group_privacy_ratio(epsilon, n) == math.inf
    assert theorems.group_privacy(epsilon, 1e-9, 1) == Guarantee(epsilon, 1e-9)


@law
@given(z=st.floats(0.3, 10), epsilon=st.floats(0, 3), n=st.integers(1, 8))
def test_group_privacy_holds_for_gaussian_releases(z: float, epsilon: float, n: int) -> None:
    bound = theorems.group_privacy(epsilon, exact_delta(1 / z, epsilon), n)
    truth = exact_delta(n / z, n * epsilon)
    assert truth <= bound.delta * (1 + 1e-9)
    assert theorems.gaussian_group_delta(z, n, n * epsilon) == pytest.approx(truth, rel=1e-6, abs=1e-14)


def test_a_gaussian_release_breaks_the_papers_form() -> None:
    # δ = Φ(−½) − eΦ(−3⁄2) = 0.126937 for one and Φ(0) − e²Φ(−2) = 0.331898 for two, at ε = 1 and 2.
    truth = theorems.gaussian_group_delta(1.0, 2, 2.0)
    assert truth == pytest.approx(0.331898, abs=1e-6)
    assert theorems.paper_group_privacy(1.0, 0.126937, 2).delta == pytest.approx(0.253874, abs=1e-6)
    assert theorems.paper_group_privacy(1.0, 0.126937, 2).delta < truth
    assert truth < theorems.group_privacy(1.0, 0.126937, 2).delta == pytest.approx(0.471988, abs=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta", "n"), [(0.5, 0.01, 3), (0.0, 0.05, 4), (1.0, 0.005, 4), (2.0, 0.001, 3)]
)
def test_a_mechanism_attains_the_right_form_and_breaks_the_papers(
    epsilon: float, delta: float, n: int
) -> None:
    """It counts how many sub-clients have a finding and says yes with a chance that grows with the count."""
    chances = [0.0]
    for _ in range(n):
        chances.append(math.exp(epsilon) * chances[-1] + delta)
    datasets = list(itertools.product((0, 1), repeat=n))
    says = {d: (chances[sum(d)], 1 - chances[sum(d)]) for d in datasets}
    for first, second in itertools.product(datasets, repeat=2):
        if sum(a != b for a, b in zip(first, second, strict=True)) == 1:
            assert divergence(says[first], says[second], epsilon) <= delta * (1 + 1e-12)
    worst = max(divergence(says[a], says[b], n * epsilon) for a, b in itertools.product(datasets, repeat=2))
    assert worst == pytest.approx(theorems.group_privacy(epsilon, delta, n).delta, rel=1e-12)
    assert worst > 1.5 * theorems.paper_group_privacy(epsilon, delta, n).delta


@law
@given(epsilon=st.floats(0, 1000), n=st.integers(2, 40))
def test_the_paper_claims_too_much_at_every_epsilon(epsilon: float, n: int) -> None:
    assert theorems.group_privacy_ratio(epsilon, n) >= 1.7632  # the least, e^Ω, at n = 2 and ε = Ω
    assert theorems.group_privacy_ratio(epsilon, 1) == 1


@pytest.mark.parametrize(("z", "delta", "epsilon"), PAPER)
def test_either_form_says_nothing_at_the_papers_own_settings(z: float, delta: float, epsilon: float) -> None:
    for n in (3, 8, 18):
        assert theorems.group_privacy(epsilon, delta, n).delta == 1
        assert theorems.paper_group_privacy(epsilon, delta, n).delta == 1
    assert theorems.gaussian_group_delta(z / 10, 8, 8 * epsilon) > 0.999  # and there is nothing to be said


# Composition


def worst_case(epsilon: float, delta: float, bit: int) -> list[float]:
    """Gives its bit away with chance δ, else randomized response: no (ε, δ) mechanism composes worse."""
    truth = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    answers = [1 - delta - truth, truth] if bit else [truth, 1 - delta - truth]
    return [*answers, delta * (1 - bit), delta * bit]


def composed_delta(epsilon: float, delta: float, k: int, at: float) -> float:
    """δ at ε = `at` of k worst cases: the sum over how many of the responses were true."""
    chance, counts = 1 / (1 + math.exp(-epsilon)), np.arange(k + 1)
    honest, other = binom.logpmf(counts, k, chance), binom.logpmf(counts, k, 1 - chance) + at
    surplus = np.where(honest > other, np.exp(honest) - np.exp(np.minimum(honest, other)), 0).sum()
    return float(1 - (1 - delta) ** k * (1 - surplus))


@law
@given(epsilon=st.floats(0, 3), delta=deltas, k=st.integers(1, 2000), slack=deltas)
def test_kairouz_against_sixty_digits(epsilon: float, delta: float, k: int, slack: float) -> None:
    with mpmath.workdps(60):
        e, d, s = mpmath.mpf(epsilon), mpmath.mpf(delta), mpmath.mpf(slack)
        mean = (mpmath.exp(e) - 1) * e * k / (mpmath.exp(e) + 1)
        second = mean + e * mpmath.sqrt(2 * k * mpmath.log(mpmath.e + mpmath.sqrt(k * e**2) / s))
        third = mean + e * mpmath.sqrt(2 * k * mpmath.log(1 / s))
        total = 1 - (1 - d) ** k * (1 - s)
    seen = theorems.kairouz_composition(epsilon, delta, k, slack)
    assert seen.terms == pytest.approx((k * epsilon, float(second), float(third)), rel=1e-12)
    assert seen.delta == pytest.approx(float(total), rel=1e-12)
    assert seen.epsilon == min(seen.terms)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_composed_worst_cases_by_enumeration(k: int) -> None:
    epsilon, delta = 0.4, 0.03
    first, second = [
        [math.prod(one) for one in itertools.product(worst_case(epsilon, delta, bit), repeat=k)]
        for bit in (0, 1)
    ]
    for slack in (0.0, 0.001, 0.1, 0.5):
        bound = theorems.kairouz_composition(epsilon, delta, k, slack)
        for term in bound.terms:
            if math.isfinite(term):
                truth = divergence(first, second, term)
                assert truth == pytest.approx(composed_delta(epsilon, delta, k, term), abs=1e-12)
                assert truth <= bound.delta * (1 + 1e-12)


@law
@given(epsilon=st.floats(1e-3, 2), delta=deltas, k=st.integers(1, 400), slack=deltas)
def test_every_term_holds_for_the_worst_case(epsilon: float, delta: float, k: int, slack: float) -> None:
    bound = theorems.kairouz_composition(epsilon, delta, k, slack)
    for term in bound.terms:
        assert composed_delta(epsilon, delta, k, term) <= bound.delta + 1e-12


def test_without_slack_composition_is_the_plain_sum_and_attained() -> None:
    one, seen = (theorems.kairouz_composition(0.5, 0.01, k, 0.0) for k in (1, 3))
    assert one.epsilon == 0.5
    assert one.delta == pytest.approx(0.01)
    assert seen.epsilon == 1.5
    assert seen.terms[1:] == (math.inf, math.inf)
    assert seen.delta == pytest.approx(composed_delta(0.5, 0.01, 3, 1.5), rel=1e-9)


def test_composition_at_its_edges() -> None:
    assert theorems.kairouz_composition(0.0, 0.0, 5, 0.0) == theorems.Composition((0.0, 0.0, 0.0), 0.0)
    assert theorems.kairouz_composition(1.0, 1.0, 5, 0.1).delta == 1
    assert theorems.kairouz_composition(1.0, 0.1, 5, 1.0).delta == 1
    assert theorems.kairouz_composition(1.0, 0.0, 10**6, 1e-18).delta == pytest.approx(1e-18)
    assert theorems.kairouz_composition(5000.0, 0.0, 3, 0.5).epsilon == 15_000


def test_composition_does_not_hold_for_hospitals_whose_sub_clients_all_take_part() -> None:
    # One round, four sub-clients at ε = 1 (z = 1): the theorem with k = 1 would say what one of them is told.
    delta = exact_delta(1.0, 1.0)
    bound = theorems.kairouz_composition(1.0, delta, 1, 0.0)
    assert theorems.gaussian_group_delta(1.0, 4, bound.epsilon) > 5 * bound.delta


# Cumulative sensitivity


Gradient = Callable[[Array, int], Array]
"""From the model and the step to a row for each sample of the batch."""


def pushing(by: float) -> Gradient:
    return lambda _model, _step: np.full((4, 3), by)


def some_client(rng: np.random.Generator, steps: int) -> Gradient:
    data, slope = 3 * rng.normal(size=(steps, 4, 3)), rng.normal(size=(3, 3))
    return lambda model, step: 2 * np.sin(slope @ model) + data[step]


def sgd(gradient: Gradient, rate: float, steps: int, bound: float, noise: Array) -> Array:
    """DP-SGD from 0 with the given noise on the mean gradients."""
    model = np.zeros(noise.shape[1])
    for step in range(steps):
        model = model - rate * (clip(gradient(model, step), bound).mean(0) + noise[step])
    return model


@pytest.mark.parametrize(
    ("samples", "neighbours", "expected"),
    [
        (8, "replace-one", 3.0),
        (8, "add-or-remove", 1.5),
        (1, "replace-one", 0.375),
        (2, "add-or-remove", 0.375),
    ],
)
def test_step_sensitivity_by_hand_and_attained(samples: int, neighbours: Any, expected: float) -> None:
    assert theorems.step_sensitivity(1.5, 8, samples, neighbours) == expected
    batch = clip(np.full((8, 2), 7.0), 1.5)
    changed = batch.copy()
    changed[:samples] = -batch[:samples] if neighbours == "replace-one" else 0
    assert length(batch.mean(0) - changed.mean(0)) == pytest.approx(expected)


def test_cumulative_sensitivity_is_attained() -> None:
    noise = np.random.default_rng(0).normal(size=(30, 3))
    up, down, without = (sgd(pushing(by), 0.1, 30, 0.5, noise) for by in (9.0, -9.0, 0.0))
    assert theorems.cumulative_sensitivity(0.1, 30, 0.5) == pytest.approx(2 * 0.1 * 30 * 0.5)
    assert length(up - down) == pytest.approx(theorems.cumulative_sensitivity(0.1, 30, 0.5))
    removed = theorems.cumulative_sensitivity(0.1, 30, 0.5, "add-or-remove")
    assert length(up - without) == pytest.approx(removed) == pytest.approx(1.5)


@law
@given(
    seed=st.integers(0, 10**6), rate=st.floats(0.01, 3), steps=st.integers(1, 20), bound=st.floats(0.05, 5)
)
def test_no_pair_of_clients_exceeds_the_cumulative_sensitivity(
    seed: int, rate: float, steps: int, bound: float
) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(steps, 3))
    first, second, without = (
        sgd(client, rate, steps, bound, noise)
        for client in (some_client(rng, steps), some_client(rng, steps), pushing(0.0))
    )
    replaced = theorems.cumulative_sensitivity(rate, steps, bound)
    removed = theorems.cumulative_sensitivity(rate, steps, bound, "add-or-remove")
    assert length(first - second) <= replaced * (1 + 1e-9)
    assert length(first - without) <= removed * (1 + 1e-9)


def test_one_changed_sample_can_carry_the_others_with_it() -> None:
    rate, steps, bound, batch = 0.1, 6, 1.0, 4

    def outcome(first: float) -> Array:
        """All samples push away from 0; the first decides the side."""
        return sgd(
            lambda m, _: np.array([[first], *[-np.sign(m)] * (batch - 1)]),
            rate,
            steps,
            bound,
            np.zeros((steps, 1)),
        )

    moved = length(outcome(1.0) - outcome(-1.0))
    assert moved > 3 * rate * steps * theorems.step_sensitivity(bound, batch, 1)
    assert moved == pytest.approx(2 * rate * bound * (1 / batch + steps - 1))
    assert moved <= theorems.cumulative_sensitivity(rate, steps, bound)


# Cumulative variance


def variance(
    rate: float, smooth: float, convex: float, steps: int, std: float = 1.0, batch: int = 1, d: int = 1
) -> theorems.CumulativeVariance:
    return theorems.cumulative_variance(
        learning_rate=rate,
        smoothness=smooth,
        convexity=convex,
        noise_std=std,
        batch_size=batch,
        dimensions=d,
        steps=steps,
    )


def simulated_drift(
    gradient: Callable[[Array, Array], Array],
    d: int,
    rate: float,
    std: float,
    batch: int,
    steps: int,
) -> tuple[Array, Array]:
    """Mean of ‖noisy − clean‖² after each step and its standard error, over 4,000 runs on the same data."""
    rng = np.random.default_rng(11)
    clean, noisy = np.full((1, d), 0.7), np.full((4000, d), 0.7)
    means, errors = [], []
    for _ in range(steps):
        data = rng.normal(size=(batch, d))
        clean = clean - rate / batch * sum(gradient(clean, x) for x in data)
        noise = std * rng.normal(size=noisy.shape)
        noisy = noisy - rate / batch * (sum(gradient(noisy, x) for x in data) + noise)
        squares = ((noisy - clean) ** 2).sum(1)
        means.append(squares.mean())
        errors.append(squares.std() / math.sqrt(len(squares)))
    return np.array(means), np.array(errors)


REGIMES = [
    (0.1, (2.0, 1.0, 0.5), "converges"),
    (2.0, (2.0, 1.9, 1.8), "diverges"),
    (1.0, (2.0, 2.0), "grows linearly"),
    (0.9, (2.0, 1.0, 0.5), "forgets"),
]


@pytest.mark.parametrize(("rate", "curvatures", "regime"), REGIMES)
def test_drift_of_a_simulated_quadratic(rate: float, curvatures: tuple[float, ...], regime: str) -> None:
    std, batch, steps = 0.8, 3, 12
    high, low, d = max(curvatures), min(curvatures), len(curvatures)
    scale = np.array(curvatures)
    means, errors = simulated_drift(lambda m, x: scale * (m - x), d, rate, std, batch, steps)
    for t in range(1, steps + 1):
        exact = theorems.quadratic_variance(rate, curvatures, std, batch, t)
        assert abs(means[t - 1] - exact) < 4 * errors[t - 1]
        bounds = variance(rate, high, low, t, std, batch, d)
        assert bounds.regime == regime
        assert bounds.lower - 4 * errors[t - 1] <= means[t - 1] <= bounds.upper + 4 * errors[t - 1]


@pytest.mark.parametrize(("rate", "convex"), [(0.1, 0.5), (0.4, 0.0), (2.0, 1.8)])
def test_drift_of_a_simulated_loss_that_is_not_quadratic(rate: float, convex: float) -> None:
    """μθ²/2 + (β − μ)·ln cosh(θ − x) has curvatures from μ to β = 2."""
    means, errors = simulated_drift(
        lambda m, x: convex * m + (2.0 - convex) * np.tanh(m - x), 2, rate, 0.8, 3, 12
    )
    for t in range(1, 13):
        bounds = variance(rate, 2.0, convex, t, 0.8, 3, 2)
        assert bounds.lower - 4 * errors[t - 1] <= means[t - 1] <= bounds.upper + 4 * errors[t - 1]


def test_variance_by_hand() -> None:
    # η 0.1, β 2, μ 1: base 1 − 0.4 + 0.01 = 0.61; each step adds 0.1²·3·0.5²/5² = 0.0003; upper 0.9² = 0.81.
    seen = variance(0.1, 2.0, 1.0, 2, 0.5, 5, 3)
    assert seen.base == pytest.approx(0.61)
    assert seen.lower == pytest.approx(0.0003 * 1.61)
    assert seen.upper == pytest.approx(0.0003 * 1.81)
    assert seen.lower_limit == pytest.approx(0.0003 / 0.39)
    assert seen.upper_limit == pytest.approx(0.0003 / 0.19)
    assert seen.regime == "converges"
    assert theorems.quadratic_variance(0.1, [2.0, 1.0], 0.5, 5, 3) == pytest.approx(
        0.0001 * (1 + 0.64 + 0.4096 + 1 + 0.81 + 0.6561)
    )


def test_below_the_threshold_the_bound_converges_at_it_grows_linearly_above_it_diverges() -> None:
    # 2β/μ² = 1 for β = μ = 2.
    below, at, above = (variance(rate, 2.0, 2.0, 10_000) for rate in (0.99, 1.0, 1.01))
    assert [one.regime for one in (below, at, above)] == ["converges", "grows linearly", "diverges"]
    assert below.lower == pytest.approx(below.lower_limit, rel=1e-9)
    assert below.lower_limit == pytest.approx(0.99**2 / (2 * 0.99 * 2 - 0.99**2 * 4))
    assert at.lower == pytest.approx(10_000)
    assert at.lower_limit == above.lower_limit == math.inf
    assert above.lower > 1e100
    assert variance(1.1, 2.0, 2.0, 10**6).lower == math.inf  # too large for a number, not an error
    assert variance(1.1, 2.0, 2.0, 10**6, std=0.0).lower == 0


@law
@given(
    rate=st.floats(0.01, 5),
    smooth=st.floats(0.1, 5),
    share=st.floats(0, 1),
    where=st.lists(st.floats(0, 1), max_size=4),
    steps=st.integers(1, 60),
)
def test_every_quadratic_lies_between_the_bounds(
    rate: float, smooth: float, share: float, where: list[float], steps: int
) -> None:
    convex = share * smooth
    curvatures = [convex, smooth, *(convex + w * (smooth - convex) for w in where)]
    exact = theorems.quadratic_variance(rate, curvatures, 1.3, 2, steps)
    seen = variance(rate, smooth, convex, steps, 1.3, 2, len(curvatures))
    assert seen.lower <= exact * (1 + 1e-9)
    assert exact <= seen.upper * (1 + 1e-9)
    one = variance(rate, smooth, smooth, steps, 1.3, 2)
    alone = theorems.quadratic_variance(rate, [smooth], 1.3, 2, steps)
    assert one.lower == pytest.approx(one.upper, rel=1e-6) == pytest.approx(alone, rel=1e-6)


@law
@given(
    smooth=st.floats(0.1, 5),
    share=st.floats(0.05, 1),
    part=st.floats(0.01, 0.99),
    steps=st.integers(1, 10**6),
)
def test_wherever_plain_descent_works_drift_is_bounded(
    smooth: float, share: float, part: float, steps: int
) -> None:
    seen = variance(part * 2 / smooth, smooth, share * smooth, steps)
    assert seen.base < 1
    assert seen.regime in ("converges", "forgets")
    assert seen.upper <= seen.upper_limit * (1 + 1e-9) < math.inf
    assert seen.lower <= seen.lower_limit * (1 + 1e-9)


@law
@given(rate=st.floats(0.001, 100), smooth=st.floats(0.1, 5), share=st.floats(0, 1))
@example(rate=100.0, smooth=2.0, share=0.0)  # without curvature below it never diverges
def test_the_bound_grows_for_ever_only_where_descent_without_noise_fails(
    rate: float, smooth: float, share: float
) -> None:
    if variance(rate, smooth, share * smooth, 5).regime == "diverges":
        assert rate >= 2 / smooth
        assert rate >= 2 / (share * smooth) * (1 - 1e-9)


def test_the_papers_closed_form_is_no_bound_where_its_base_is_negative() -> None:
    # η 1, β 2, μ 0: base −3, and (base³ − 1)/(base − 1) = 7, for each of two coordinates.
    claimed = 2 * ((-3.0) ** 3 - 1) / (-3.0 - 1)
    exact = theorems.quadratic_variance(1.0, [2.0, 0.0], 1.0, 1, 3)
    assert claimed == 14
    assert exact == pytest.approx(6)
    rng = np.random.default_rng(5)
    apart = np.zeros((20_000, 2))
    for _ in range(3):
        apart = apart - np.array([2.0, 0.0]) * apart + rng.normal(size=apart.shape)
    assert (apart**2).sum(1).mean() == pytest.approx(6.0, rel=0.04)
    seen = variance(1.0, 2.0, 0.0, 3, d=2)
    assert (seen.base, seen.regime, seen.lower, seen.lower_limit) == (-3.0, "forgets", 2.0, 2.0)
    last = variance(0.25, 2.0, 0.0, 40)  # a base of 0 keeps the last step alone
    assert (last.base, last.regime, last.lower, last.lower_limit) == (0.0, "forgets", 0.0625, 0.0625)


# Accumulated noise


def test_noises_add_up_with_the_root_of_the_steps() -> None:
    # η 0.1, z 1.2, c 2, K 8, T 64: 0.1·(1.2·2/8)·8 = 0.24
    assert theorems.accumulated_noise(0.1, 1.2, 2.0, 8, 64) == pytest.approx(0.24)
    noise = np.random.default_rng(2).normal(scale=1.2 * 2.0, size=(64, 20_000))
    assert (0.1 * noise / 8).sum(0).std() == pytest.approx(0.24, rel=4 / math.sqrt(2 * 20_000))


@law
@given(z=st.floats(0.1, 10), bound=st.floats(0.1, 10), batch=st.integers(1, 64), steps=st.integers(1, 1000))
def test_on_a_flat_loss_all_of_the_noise_stays_in_the_model(
    z: float, bound: float, batch: int, steps: int
) -> None:
    added = theorems.accumulated_noise(0.1, z, bound, batch, steps)
    left = [theorems.quadratic_variance(0.1, [c] * 3, z * bound, batch, steps) for c in (0.0, 1.0)]
    assert left[0] == pytest.approx(3 * added**2)
    assert left[1] <= left[0]


@law
@given(z=st.floats(0.5, 50), batch=st.integers(1, 32), steps=st.integers(1, 300), delta=deltas)
def test_client_multiplier_is_the_exact_composition_of_the_steps(
    z: float, batch: int, steps: int, delta: float
) -> None:
    multiplier = theorems.client_noise_multiplier(z, batch, steps)
    composed = math.sqrt(math.fsum([(2 * batch / z) ** 2] * steps))
    epsilon = gaussian_epsilon(1 / multiplier, delta)
    assert epsilon == pytest.approx(gaussian_epsilon(composed, delta), rel=1e-9)
    if epsilon:
        assert exact_delta(composed, epsilon) == pytest.approx(delta, rel=1e-4)


@law
@given(
    rate=st.floats(0.01, 3),
    z=st.floats(0.1, 10),
    bound=st.floats(0.1, 9),
    steps=st.integers(1, 500),
    neighbours=st.sampled_from(NEIGHBOURS),
)
def test_client_multiplier_is_noise_over_sensitivity_at_any_rate_and_bound(
    rate: float, z: float, bound: float, steps: int, neighbours: Neighbours
) -> None:
    noise = theorems.accumulated_noise(rate, z, bound, 8, steps)
    moved = theorems.cumulative_sensitivity(rate, steps, bound, neighbours)
    assert theorems.client_noise_multiplier(z, 8, steps, neighbours) == pytest.approx(noise / moved)


@pytest.mark.parametrize(("z", "delta", "epsilon"), PAPER)
def test_the_root_of_the_steps_misses_the_papers_own_epsilon(z: float, delta: float, epsilon: float) -> None:
    assert theorems.paper_epsilon_after_steps(z, 100, delta) < 0.4 * epsilon


def test_the_root_of_the_steps_by_hand_and_where_it_serves() -> None:
    # δ(3.80788) at μ = 2 is Φ(−0.90394) − e^3.80788·Φ(−2.90394) = 0.1830 − 0.0830.
    claimed = theorems.paper_epsilon_after_steps(0.5, 100, 0.1)
    assert exact_delta(2.0, claimed / 10) == pytest.approx(0.1, rel=1e-6)
    assert claimed == pytest.approx(38.0788, abs=1e-3)
    assert theorems.paper_epsilon_after_steps(100.0, 100, 1e-5) == pytest.approx(
        gaussian_epsilon(0.1, 1e-5), rel=0.25
    )
    assert theorems.paper_epsilon_after_steps(2.0, 1, 1e-5) == gaussian_epsilon(0.5, 1e-5)


# What cannot be used

COUNTS = {"intermediaries", "group_size", "rounds", "steps", "batch_size", "samples_changed", "dimensions"}
CHANCES = {"delta", "slack"}
OTHERS: dict[str, Any] = {"neighbours": "replace-one", "curvatures": [1.0], "convexity": 0.5}
FUNCTIONS = {
    name: tuple(inspect.signature(one).parameters)
    for name, one in inspect.getmembers(theorems, inspect.isfunction)
    if one.__module__ == theorems.__name__ and not name.startswith("_")
}


def usable(function: str) -> dict[str, Any]:
    plain = {name: 2 if name in COUNTS else 0.1 if name in CHANCES else 1.0 for name in FUNCTIONS[function]}
    return plain | {name: value for name, value in OTHERS.items() if name in plain}


def unusable(name: str) -> list[Any]:
    if name in COUNTS:
        return [0, -1, 1.5, math.nan, math.inf]
    if name in CHANCES:
        return [-0.1, 1.1, math.nan]
    return {"neighbours": ["replace"], "curvatures": [[-1.0], [math.nan]]}.get(
        name, [-1.0, math.nan, math.inf]
    )


@pytest.mark.parametrize(
    ("function", "argument", "value"),
    [(f, a, value) for f, arguments in FUNCTIONS.items() for a in arguments for value in unusable(a)],
)
def test_what_cannot_be_used_is_named(function: str, argument: str, value: Any) -> None:
    getattr(theorems, function)(**usable(function))
    said = rf"curvatures\[0\] is {value[0]}" if argument == "curvatures" else f"{argument} is {value}"
    with pytest.raises(InputError, match=f"^{said}; give "):
        getattr(theorems, function)(**usable(function) | {argument: value})


@pytest.mark.parametrize(
    ("function", "argument", "value", "said"),
    [
        ("split_noise_multipliers", "noise_multiplier", 0.0, "a finite number above 0"),
        ("gaussian_levels", "noise_std", 0.0, "a finite number above 0"),
        ("gaussian_levels", "sub_client_sensitivity", 3.0, r"at most client_sensitivity \(1.0\)"),
        ("step_sensitivity", "samples_changed", 3, r"at most batch_size \(2\)"),
        ("cumulative_variance", "convexity", 1.5, r"at most smoothness \(1.0\)"),
        ("cumulative_variance", "learning_rate", 0.0, "a finite number above 0"),
        ("paper_epsilon_after_steps", "delta", 0.0, "a probability above 0 and below 1"),
        ("kairouz_composition", "delta", 2.0, "a probability, 0 to 1"),
        ("group_privacy", "group_size", 0, "a whole number, 1 or more"),
        ("preserved_at_sub_clients", "neighbours", "one", "add-or-remove or replace-one"),
    ],
)
def test_the_way_out_is_said(function: str, argument: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"^{argument} is {value}; give {said}"):
        getattr(theorems, function)(**usable(function) | {argument: value})
