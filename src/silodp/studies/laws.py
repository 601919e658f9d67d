"""Laws over the number of intermediaries v, fitted by least squares (the paper's Eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from silodp.studies.claims import Claim

HOLDS = 0.9
"""A law holds where its R² is at least this."""

UNLIKE = 0.25
"""And where the best power is no further off: R² forgives a wrong one, since v = 1 weighs most."""


@dataclass(frozen=True)
class Quantity:
    """One of Eq. 2, and the power of v that Eq. 3 gives it."""

    key: Literal["xi", "phi", "lambda"]  # in metrics.jsonl
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

    def __call__(self, v: NDArray[Any]) -> NDArray[Any]:
        """The law's values at v."""
        values: NDArray[Any] = self.factor * v**self.power + self.constant
        return values


@dataclass(frozen=True)
class Fits:
    """One quantity, measured in one way: Eq. 3's law, the same with a constant, and the best power."""

    quantity: Quantity
    measured: str
    paper: Law
    with_constant: Law
    free: Law


def fixed_power(v: Sequence[float], y: Sequence[float], power: float, constant: bool = False) -> Law:
    """y = a·v^power, or with a constant y = a·v^power + c."""
    shape, values = np.asarray(v, dtype=float) ** power, np.asarray(y, dtype=float)
    columns = np.stack([shape, np.ones_like(shape)] if constant else [shape], axis=1)
    if len(set(v)) < columns.shape[1]:
        return Law(power, math.nan, math.nan, math.nan)
    solution = np.linalg.lstsq(columns, values, rcond=None)[0]
    r2 = _r2(values, columns @ solution) if len(set(v)) > columns.shape[1] else math.nan
    return Law(power, float(solution[0]), float(solution[1]) if constant else 0.0, r2)


def free_power(v: Sequence[float], y: Sequence[float]) -> Law:
    """y = a·v^b, a line through the logarithms; only where every y is above zero."""
    if len(set(v)) < 2 or min(y) <= 0:
        return Law(math.nan, math.nan, 0.0, math.nan)
    line = fixed_power(np.log(v).tolist(), np.log(y).tolist(), 1, constant=True)
    return Law(line.factor, math.exp(line.constant), 0.0, line.r2)


def fit(values: Mapping[tuple[str, str], Sequence[tuple[int, float]]], quantity: Quantity, how: str) -> Fits:
    points = values.get((how, quantity.key), [])
    v, y = [point[0] for point in points], [point[1] for point in points]
    power = quantity.power
    return Fits(quantity, how, fixed_power(v, y, power), fixed_power(v, y, power, True), free_power(v, y))


def claim(fits: Fits) -> Claim:
    """Whether the paper's law holds, and which power fits best."""
    law, free = fits.paper, fits.free
    known = not math.isnan(law.r2)
    unlike = abs(free.power - fits.quantity.power) > UNLIKE
    return Claim(
        f"{fits.measured}: {fits.quantity.symbol} = {fits.quantity.law}",
        law.r2 >= HOLDS and not unlike if known else None,
        f"R² = {law.r2:.2f}, best power v^{free.power:.2f}".replace("-", "−") * known,
    )


def _r2(values: NDArray[Any], fitted: NDArray[Any]) -> float:
    total = float(((values - values.mean()) ** 2).sum())
    return 1 - float(((values - fitted) ** 2).sum()) / total if total > 0 else math.nan
