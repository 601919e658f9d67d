"""Laws over the number of intermediaries v, fitted by least squares (the paper's Eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from silodp.studies.claims import Claim

HOLDS = 0.9
"""A law holds where its R² is at least this."""

MOST_OFF = 0.25
"""And where the best power is at most this far off: R² tolerates a wrong power, since v = 1 weighs most."""


QuantityKey = Literal["xi", "phi", "lambda"]
"""In metrics.jsonl."""


@dataclass(frozen=True)
class Quantity:
    """A quantity of Eq. 2, and its power of v by Eq. 3."""

    key: QuantityKey
    symbol: str
    meaning: str
    power: int
    law: str


QUANTITIES = (
    Quantity("xi", "ξ", "noise level", -1, "ξ₁/v"),
    Quantity("phi", "φ", "diversity of the updates", 1, "φ₁·v"),
    Quantity("lambda", "λ", "their ratio ξ/φ", -2, "λ₁/v²"),
)


@dataclass(frozen=True)
class Law:
    """y = factor·v^power + constant.

    Attributes:
        r2: 1 − Σ(y − law)²/Σ(y − mean)², negative where the mean alone fits better; of the logarithms for
            `free_power`. NaN where there are no more different v than numbers fitted, or y does not vary.
    """

    power: float
    factor: float
    constant: float
    r2: float

    def __call__(self, v: float) -> float:
        """The law's value at v."""
        return float(self.factor * v**self.power + self.constant)


@dataclass(frozen=True)
class Fits:
    """Three fits of one quantity: the law of Eq. 3, the same with a constant, and the best power."""

    quantity: Quantity
    measured: str
    paper: Law
    with_constant: Law
    free: Law


def fixed_power(v: Sequence[float], y: Sequence[float], power: float, constant: bool = False) -> Law:
    """Fits y = a·v^power, or with a constant y = a·v^power + c."""
    shape, values = np.asarray(v, dtype=float) ** power, np.asarray(y, dtype=float)
    columns = np.stack([shape, np.ones_like(shape)] if constant else [shape], axis=1)
    if len(set(v)) < columns.shape[1]:
        return Law(power, math.nan, math.nan, math.nan)
    solution = np.linalg.lstsq(columns, values, rcond=None)[0]
    r2 = _r2(values, columns @ solution) if len(set(v)) > columns.shape[1] else math.nan
    return Law(power, float(solution[0]), float(solution[1]) if constant else 0.0, r2)


def free_power(v: Sequence[float], y: Sequence[float]) -> Law:
    """Fits y = a·v^b by a line through the logarithms; NaN unless every y is above zero."""
    if len(set(v)) < 2 or min(y) <= 0:
        return Law(math.nan, math.nan, 0.0, math.nan)
    line = fixed_power(np.log(v).tolist(), np.log(y).tolist(), 1, constant=True)
    return Law(line.factor, math.exp(line.constant), 0.0, line.r2)


def fit(points: Sequence[tuple[int, float]], quantity: Quantity, how: str) -> Fits:
    v, y = [point[0] for point in points], [point[1] for point in points]
    power = quantity.power
    return Fits(quantity, how, fixed_power(v, y, power), fixed_power(v, y, power, True), free_power(v, y))


def claim(fits: Fits) -> Claim:
    """Claims that the paper's law holds, with the power that fits best."""
    law, free = fits.paper, fits.free
    known = not math.isnan(law.r2)
    off = abs(free.power - fits.quantity.power) > MOST_OFF
    return Claim(
        f"{fits.measured}: {fits.quantity.symbol} = {fits.quantity.law}",
        law.r2 >= HOLDS and not off if known else None,
        f"R² = {law.r2:.2f}, best power v^{free.power:.2f}".replace("-", "−") * known,
    )


def _r2(values: NDArray[Any], fitted: NDArray[Any]) -> float:
    total = float(((values - values.mean()) ** 2).sum())
    return 1 - float(((values - fitted) ** 2).sum()) / total if total > 0 else math.nan
