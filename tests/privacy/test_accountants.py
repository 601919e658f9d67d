"""ε against the paper's figures, scipy and mpmath, for both units."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from silodp.privacy.accountants import Epsilon, UnitEpsilon, spent
from silodp.privacy.events import Event

ROUNDS = 100


def event(z: float, v: int = 1, round_: int = 1, *, protected: bool = True) -> Event:
    kind = "model update" if protected else "median norm"
    return Event(round_, kind, protected, z, v, 1.0, "all", 1.0)  # type: ignore[arg-type]


def rounds(z: float, v: int = 1) -> list[Event]:
    return [event(z, v, number) for number in range(1, ROUNDS + 1)]


def exact_delta(mu: float, epsilon: float) -> float:
    """The formula with 60 digits."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


PAPER = [
    (0.5, 0.01, 245.6),
    (1.0, 0.01, 72.4),
    (1.5, 0.01, 36.9),
    (0.3, 0.1, 597.3),
    (0.5, 0.1, 224.7),
    (0.7, 0.1, 119.4),
]


@pytest.mark.parametrize(("z", "delta", "printed"), PAPER)
def test_the_papers_six_figures(z: float, delta: float, printed: float) -> None:
    seen = spent(rounds(z), delta)
    assert round(seen.intermediary, 1) == printed
    assert seen.hospital == seen.intermediary
    assert seen.covers_everything


@pytest.mark.parametrize(
    ("z", "v", "delta", "hospital", "intermediary"),
    [(0.5, 15, 0.1, 45_383.5, 224.7), (1.0, 12, 0.01, 7_478.2, 72.4)],
)
def test_a_hospital_of_v_intermediaries_is_protected_by_z_over_v(
    z: float, v: int, delta: float, hospital: float, intermediary: float
) -> None:
    seen = spent(rounds(z, v), delta)
    assert round(seen.hospital, 1) == hospital
    assert round(seen.intermediary, 1) == intermediary


def test_unlike_rounds_compose_by_squares() -> None:
    # 1/1² + 1/2² + 1/0.5² = 5.25 for an intermediary; times v² for a hospital: 1 + 4/4 + 4·9 = 38.
    seen = spent([event(1.0, 1), event(2.0, 2), event(0.5, 3)], 1e-3)
    for epsilon, squares in ((seen.intermediary, 5.25), (seen.hospital, 38.0)):
        assert exact_delta(math.sqrt(squares), epsilon) == pytest.approx(1e-3, rel=1e-6)


def test_order_does_not_matter_and_four_at_two_are_one_at_one() -> None:
    events = [event(1.0), event(2.0), event(0.5)]
    assert spent(events, 0.01).hospital == pytest.approx(spent(events[::-1], 0.01).hospital)
    assert spent([event(2.0)] * 4, 0.01).hospital == pytest.approx(spent([event(1.0)], 0.01).hospital)


@settings(max_examples=50, deadline=None)
@given(
    multipliers=st.lists(st.floats(0.05, 20), min_size=1, max_size=30),
    extra=st.floats(0.05, 20),
    v=st.integers(1, 20),
)
def test_another_release_never_lowers_epsilon(multipliers: list[float], extra: float, v: int) -> None:
    events = [event(z, v) for z in multipliers]
    before, after = spent(events, 0.01), spent([*events, event(extra, v)], 0.01)
    assert after.hospital >= before.hospital >= before.intermediary
    assert after.intermediary >= before.intermediary


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_a_thousand_rounds_with_hardly_any_noise_still_have_a_figure(delta: float) -> None:
    epsilon = spent([event(0.01, 20)] * 1000, delta).hospital
    mu = math.sqrt(1000) * 20 / 0.01
    assert epsilon == pytest.approx(mu**2 / 2 + mu * -norm.ppf(delta), rel=1e-6)


def test_a_release_without_noise_is_infinite_whatever_follows() -> None:
    for events in ([event(0.0)], [event(1.0), event(0.0, 3)], [event(0.0), event(1.0)]):
        assert spent(events, 0.1) == Epsilon(math.inf, math.inf, UnitEpsilon(math.inf, math.inf), "exact")


def test_unprotected_events_add_nothing_and_say_so() -> None:
    protected = rounds(1.0, 3)
    seen = spent([*protected, event(0.0, 3, protected=False)], 0.01)
    alone = spent(protected, 0.01)
    assert (seen.hospital, seen.intermediary) == (alone.hospital, alone.intermediary)
    assert alone.covers_everything
    assert not seen.covers_everything


def test_nothing_released_costs_nothing() -> None:
    assert spent([], 0.1) == Epsilon(0.0, 0.0, UnitEpsilon(0.0, 0.0), "exact", covers_everything=True)


def test_very_much_noise_costs_nothing_at_a_large_delta() -> None:
    assert spent([event(1e4)], 0.1).hospital == 0.0
