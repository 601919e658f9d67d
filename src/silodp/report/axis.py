"""The axes of a chart: their ranges and ticks.

However close the values are, an axis is long enough for two ticks with different labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_DECADES = 0.3  # a logarithmic axis spans at least a factor of two
MOST_TICKS = 6
# The first row that gives few enough ticks is taken; the finest has two ticks in any LEAST_DECADES.
LOG_STEPS = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))


@dataclass(frozen=True)
class Axis:
    """A range, in decimal logarithms if the axis is logarithmic, and ticks as plain values."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Position of a value along the axis, from 0 to 1."""
        place = math.log10(value) if self.is_log else value
        return min(1.0, max(0.0, (place - self.low) / (self.high - self.low)))


def linear_axis(low: float, high: float, *, whole: bool = False) -> Axis:
    """An axis over these values and 0 that ends at round numbers."""
    low, high = min(0.0, low), max(0.0, high)
    found = _locate(low, high if high > low else 1.0, whole)
    return Axis(found[0], found[-1], tuple(found))


def fixed_axis(low: float, high: float) -> Axis:
    """An axis over exactly this range."""
    return Axis(low, high, _within(low, high, whole=False))


def log_axis(low: float, high: float, *, room_above: bool = False) -> Axis:
    """A logarithmic axis over positive values, with space for a line of text at the top if wanted."""
    first, last = _widened(math.log10(low), math.log10(high), LEAST_DECADES)
    first, last = first - (last - first) * 0.08, last + (last - first) * 0.08
    last += (last - first) * 0.06 * room_above
    decades = range(math.floor(first), math.ceil(last) + 1)
    for steps in LOG_STEPS:
        ticks = [step * 10.0**power for power in decades for step in steps]
        ticks = [tick for tick in ticks if first <= math.log10(tick) <= last]
        if len(ticks) <= MOST_TICKS:
            break
    return Axis(first, last, tuple(ticks[:: 1 + max(0, len(ticks) - 1) // MOST_TICKS]), is_log=True)


def round_axis(first: float, last: float) -> Axis:
    """An axis of rounds: whole numbers that begin with the first round, not with 0."""
    ticks = _within(first, last, whole=True)
    if first not in ticks:
        near = (last - first) / 12
        ticks = (first, *(tick for tick in ticks if tick - first > near))
    return Axis(*_widened(first, last, 0.5), ticks)


def number(value: float) -> str:
    """A number as a label."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3g}"


def _locate(low: float, high: float, whole: bool) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=whole, min_n_ticks=2)
    return [float(tick) + 0.0 for tick in locator.tick_values(low, high)]


def _within(low: float, high: float, whole: bool) -> tuple[float, ...]:
    near = (high - low) * 1e-9
    return tuple(tick for tick in _locate(low, high, whole) if low - near <= tick <= high + near)


def _widened(low: float, high: float, least: float) -> tuple[float, float]:
    """The range, extended around its middle to `least` if it is shorter."""
    middle = (low + high) / 2
    return (low, high) if high - low >= least else (middle - least / 2, middle + least / 2)
