"""Noise for a target, rounds for a target: the inverse of the accountants."""

import pytest
from exact_figures import PAPER
from hypothesis import given, settings
from hypothesis import strategies as st

from silodp.errors import InputError
from silodp.privacy.accountants import epsilon_bound
from silodp.privacy.calibration import MOST_ROUNDS, Setting, Target, affordable_rounds, noise_for
from silodp.privacy.events import Neighbours, Unit


def epsilon_of(
    setting: Setting, z: float, rounds: int, unit: Unit = "hospital", neighbours: Neighbours = "add-or-remove"
) -> float:
    """The one bound that is asked for; `Setting.figures` computes four."""
    events = setting.events(z, rounds)
    return epsilon_bound(events, setting.delta, unit, neighbours, setting.accountant).epsilon


@pytest.mark.parametrize(("z", "delta", "epsilon"), PAPER)
def test_the_papers_noise_follows_from_its_epsilon(z: float, delta: float, epsilon: float) -> None:
    assert noise_for(Target(epsilon, "intermediary"), Setting(delta), 100) == pytest.approx(z, rel=1e-3)


def test_a_hospital_of_v_intermediaries_needs_v_times_the_noise() -> None:
    setting = Setting(0.1, intermediaries=15)
    hospital, intermediary = (
        noise_for(Target(10.0, unit), setting, 100) for unit in ("hospital", "intermediary")
    )
    assert hospital == pytest.approx(15 * intermediary)
    assert noise_for(Target(10.0, "hospital", "replace-one"), setting, 100) == pytest.approx(2 * hospital)


@settings(max_examples=30, deadline=None)
@given(
    epsilon=st.floats(-2, 3).map(lambda x: 10.0**x),
    delta=st.floats(-6, -0.5).map(lambda x: 10.0**x),
    v=st.integers(1, 20),
    rounds=st.integers(1, 500),
    unit=st.sampled_from(["hospital", "intermediary"]),
    neighbours=st.sampled_from(["add-or-remove", "replace-one"]),
)
def test_found_noise_keeps_the_target_and_less_does_not(
    epsilon: float, delta: float, v: int, rounds: int, unit: Unit, neighbours: Neighbours
) -> None:
    setting = Setting(delta, v)
    z = noise_for(Target(epsilon, unit, neighbours), setting, rounds)
    assert epsilon_of(setting, z, rounds, unit, neighbours) <= epsilon * (1 + 1e-6)
    assert epsilon_of(setting, z * 0.999, rounds, unit, neighbours) > epsilon


@pytest.mark.parametrize("participation", ["poisson", "fraction"])
def test_found_noise_counts_on_the_amplification(participation: str) -> None:
    setting = Setting(0.01, 2, participation, 0.25)  # type: ignore[arg-type]
    z = noise_for(Target(5.0), setting, 40)
    assert 4.9 < epsilon_of(setting, z, 40) <= 5.0 * (1 + 1e-6)
    assert z < 0.9 * noise_for(Target(5.0), Setting(0.01, 2), 40)


@pytest.mark.parametrize(("epsilon", "delta", "z"), [(72.4, 0.01, 1.0), (224.7, 0.1, 0.5), (597.3, 0.1, 0.3)])
def test_the_papers_epsilon_affords_its_hundred_rounds(epsilon: float, delta: float, z: float) -> None:
    assert affordable_rounds(Target(epsilon, "intermediary"), Setting(delta), z) == 100


@settings(max_examples=20, deadline=None)
@given(epsilon=st.floats(0.5, 300), z=st.floats(0.5, 3), v=st.integers(1, 5))
def test_one_round_more_than_affordable_is_too_much(epsilon: float, z: float, v: int) -> None:
    setting, target = Setting(0.01, v), Target(epsilon)
    rounds = affordable_rounds(target, setting, z)
    if rounds:
        assert epsilon_of(setting, z, rounds) <= epsilon * (1 + 1e-9)
    assert epsilon_of(setting, z, rounds + 1) > epsilon


def test_nothing_is_affordable_without_noise() -> None:
    assert affordable_rounds(Target(10.0), Setting(0.1), 0.0) == 0


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"delta": 1.0}, "delta = 1: choose a chance"),
        ({"delta": 0.0}, "delta = 0: choose a chance"),
        ({"delta": 0.1, "intermediaries": 0}, "intermediaries = 0: a hospital is at least one"),
        ({"delta": 0.1, "sampling_rate": 0.0}, "sample rate = 0"),
        ({"delta": 0.1, "sampling_rate": 1.5}, "sample rate = 1.5"),
    ],
)
def test_impossible_settings_are_refused(settings_: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Setting(**settings_)  # type: ignore[arg-type]


@pytest.mark.parametrize("z", [-1.0, float("nan"), float("inf")])
def test_impossible_noise_is_refused(z: float) -> None:
    with pytest.raises(InputError, match="noise multiplier = "):
        Setting(0.1).figures(z, 10)


@pytest.mark.parametrize("rounds", [0, -3, MOST_ROUNDS + 1])
def test_impossible_rounds_are_refused(rounds: int) -> None:
    with pytest.raises(InputError, match="rounds = "):
        Setting(0.1).figures(1.0, rounds)
    with pytest.raises(InputError, match="rounds = "):
        noise_for(Target(10.0), Setting(0.1), rounds)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e300, float("inf"), float("nan")])
def test_an_impossible_target_is_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match="target epsilon = "):
        Target(epsilon)
