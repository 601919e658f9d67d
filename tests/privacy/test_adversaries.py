"""ε against who looks: closed forms of Gaussian mechanisms with less noise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silodp.privacy.adversaries import against
from silodp.privacy.events import Event
from silodp.privacy.gaussian import gaussian_epsilon

DELTA = 1e-3


def event(z: float, round_: int, v: int = 1) -> Event:
    return Event(round_, "model update", True, z, v, 0.1, "all", 1.0)


@given(st.floats(0.5, 5), st.integers(1, 20), st.integers(1, 4), st.integers(1, 12))
def test_shares_of_noise_seen_from_three_places(z: float, rounds: int, v: int, shares: int) -> None:
    """One share is 1/shares of the variance; of two hospitals that answer, one knows its own share."""
    events = [event(z, number, v) for number in range(1, rounds + 1)]
    mu = v * math.sqrt(rounds) / z
    seen = against(events, DELTA, shares)
    unknown = max(shares, 2) - 1
    assert seen.outside == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-3)
    assert seen.coordinator == pytest.approx(gaussian_epsilon(mu * math.sqrt(shares), DELTA), rel=1e-3)
    another = gaussian_epsilon(mu * max(1.0, math.sqrt(shares / unknown)), DELTA)
    assert seen.another_hospital == pytest.approx(another, rel=1e-3)
    assert seen.outside <= seen.another_hospital * (1 + 1e-9)
    if shares > 1:
        assert seen.another_hospital <= seen.coordinator * (1 + 1e-9)


def test_where_the_server_adds_the_noise_nothing_holds_against_it() -> None:
    seen = against([event(1.0, 1)], DELTA, 0)
    assert seen.coordinator == math.inf
    assert seen.another_hospital == seen.outside < math.inf


@pytest.mark.parametrize("shares", [1, 2])
def test_who_was_drawn_is_known_inside(shares: int) -> None:
    """Outside, ε counts on the secret of the draws; the coordinator makes them."""
    drawn = [Event(number, "model update", True, 2.0, 1, 0.1, "poisson", 0.2) for number in range(1, 11)]
    seen = against(drawn, DELTA, shares)
    assert seen.outside < gaussian_epsilon(math.sqrt(10) / 2, DELTA)
    exact = gaussian_epsilon(math.sqrt(10) / 2 * math.sqrt(shares), DELTA)
    assert seen.coordinator == pytest.approx(exact, rel=1e-3)


def test_nothing_released_costs_nothing() -> None:
    assert against([], DELTA, 3).coordinator == 0.0
