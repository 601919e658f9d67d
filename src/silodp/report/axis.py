"""The scale of a chart: how far it reaches, and the round numbers that are written beside it.

However near to each other the values lie, a scale is long enough to have two numbers that read differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_DECADES = 0.3  # a logarithmic scale spans a factor of two, and a little room, at least
MOST_TICKS = 6
# Of the closest steps two lie in every stretch of LEAST_DECADES; the first row with few enough is taken.
LOG_STEPS = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))


@dataclass(frozen=True)
class Axis:
    """From where to where, in logarithms to base ten on a logarithmic scale; ticks are values in any case."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1."""
        place = math.log10(value) if self.is_log else value
        return min(1.0, max(0.0, (place - self.low) / (self.high - self.low)))


def linear_axis(low: float, high: float, *, whole: bool = False) -> Axis:
    """Around these values and nought, with round numbers at both ends."""
    low, high = min(0.0, low), max(0.0, high)
    found = _locate(low, high if high > low else 1.0, whole)
    return Axis(found[0], found[-1], tuple(found))


def fixed_axis(low: float, high: float) -> Axis:
    """From here to there exactly."""
    return Axis(low, high, _within(low, high, whole=False))


def log_axis(low: float, high: float, *, room_above: bool = False) -> Axis:
    """Around these values, all above nought; with room for a line of text at the top where asked for."""
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
    """Along rounds, which are whole and begin with the first, not with 0."""
    ticks = _within(first, last, whole=True)
    if first not in ticks:
        near = (last - first) / 12
        ticks = (first, *(tick for tick in ticks if tick - first > near))
    return Axis(*_widened(first, last, 0.5), ticks)


def number(value: float) -> str:
    """A number as people read it."""
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
    """The range, or what is shorter than `least`: so much around its middle."""
    middle = (low + high) / 2
    return (low, high) if high - low >= least else (middle - least / 2, middle + least / 2)
