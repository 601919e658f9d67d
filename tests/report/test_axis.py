"""Scales: whatever the values, there are numbers to read them by."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from silodp.report.axis import Axis, linear_axis, log_axis, number, round_axis

POWERS = st.floats(-90, 90)
"""Logarithms, so that small and large values are drawn alike."""
NARROW = st.one_of(st.just(0.0), st.floats(0, 1e-9), st.floats(0, 1), st.floats(0, 60))
"""From one value to the other, in powers of ten: alike, nearly alike, within a power of ten, far apart."""


def legible(axis: Axis) -> None:
    """Two round numbers at least and not too many, all on the axis, which read differently and truly."""
    places = [math.log10(tick) if axis.is_log else tick for tick in axis.ticks]
    assert 2 <= len(places) <= 7
    assert all(axis.low <= place <= axis.high for place in places)
    assert places == sorted(set(places))
    labels = [number(tick) for tick in axis.ticks]
    assert len(set(labels)) == len(labels)
    for label, tick in zip(labels, axis.ticks, strict=True):
        assert float(label.replace(",", "")) == pytest.approx(tick, rel=1e-9, abs=1e-300)


@given(POWERS, NARROW, st.booleans())
@example(math.log10(2.3), math.log10(3.7 / 2.3), False)
@example(math.log10(2.3), math.log10(3.7 / 2.3), True)
@example(math.log10(5.1), math.log10(9.9 / 5.1), False)
def test_a_logarithmic_axis(power: float, width: float, room: bool) -> None:
    low, high = 10**power, 10 ** (power + min(width, 99 - power))
    axis = log_axis(low, high, room_above=room)
    assert axis.low < math.log10(low)
    assert math.log10(high) < axis.high
    legible(axis)
    assert axis.high - axis.low <= max(0.3, math.log10(high / low)) * 1.3  # no more room than it takes


@given(st.sampled_from([-1, 1]), POWERS, st.sampled_from([-1, 0, 1]), POWERS)
def test_a_linear_axis(sign: int, power: float, other_sign: int, other: float) -> None:
    low, high = sorted((sign * 10**power, other_sign * 10**other))
    axis = linear_axis(low, high)
    unseen = max(abs(low), abs(high)) * 1e-9  # the rounding of floats, or a value far smaller than the other
    assert axis.low - unseen <= low <= high <= axis.high + unseen
    assert axis.low <= 0 <= axis.high
    legible(axis)


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_an_axis_of_whole_numbers(low: int, more: int) -> None:
    axis = linear_axis(low, low + more, whole=True)
    assert axis.low == 0
    assert low + more <= axis.high
    assert all(tick == round(tick) for tick in axis.ticks)
    legible(axis)


def test_a_linear_axis_of_nought_alone() -> None:
    axis = linear_axis(0.0, 0.0)
    assert (axis.low, axis.high) == (0, 1)
    legible(axis)


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_rounds(first: int, more: int) -> None:
    axis = round_axis(first, first + more)
    assert axis.ticks[0] == first
    assert axis.low < axis.high
    assert all(first <= tick <= first + more and tick == round(tick) for tick in axis.ticks)
    assert 2 <= len(axis.ticks) <= 7 or more == 0
    assert len({number(tick) for tick in axis.ticks}) == len(axis.ticks)
