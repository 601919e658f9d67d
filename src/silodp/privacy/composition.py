"""From what a unit faces to its ε: the exact formula, and the accountants of Opacus and dp-accounting.

Each function gives an upper bound on ε or raises `Unable`. Their libraries are imported when asked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from fractions import Fraction

from silodp.privacy.events import bounds_moved
from silodp.privacy.exposure import Exposure
from silodp.privacy.gaussian import gaussian_epsilon, mixture_epsilon

PRV_POINTS = 2**22
"""Opacus' PRV accountant is not asked for more grid points than this: it would take minutes and fail."""

PRV_LARGEST = 700
"""It computes e^ε in double precision, which ends at ε = 709: near there its answers are too small."""


class Unable(Exception):
    """An accountant that has no answer; the text says why."""


def exact(exposure: Exposure, delta: float) -> float:
    """Every round counts in full: no amplification is claimed."""
    return gaussian_epsilon(exposure.mu, delta)


def known_participation(exposure: Exposure, delta: float) -> float:
    return mixture_epsilon(exposure.own_squares, exposure.rate, delta)


def pld(exposure: Exposure, delta: float) -> float:
    """dp-accounting's privacy loss distributions, on a grid fine enough for the answer: an upper bound."""
    _needs_poisson(exposure)
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_ONE if exposure.neighbours == "replace-one" else relations.ADD_OR_REMOVE_ONE
    # One round's losses reach about `widest` and all rounds' about the exact ε, each on so many grid points.
    widest = max(square + 20 * math.sqrt(square) for square, _ in exposure.own_squares)
    interval = max(1e-4, widest / 2**14, exact(exposure, delta) / 2**22)
    accountant = PLDAccountant(relation, interval)
    for square, count in exposure.squares:
        release = dp_accounting.GaussianDpEvent(1 / math.sqrt(square))
        if exposure.rate < 1:
            release = dp_accounting.PoissonSampledDpEvent(exposure.rate, release)
        accountant.compose(release, count)
    epsilon = float(accountant.get_epsilon(delta))
    if not math.isfinite(epsilon):
        raise Unable("its grid does not reach so far")
    return epsilon


def prv(exposure: Exposure, delta: float) -> float:
    """Opacus' PRV accountant (Gopi, Lee and Wutschitz 2021)."""
    squares = _for_opacus(exposure)
    from opacus.accountants import PRVAccountant

    rounds, most = sum(count for _, count in squares), exact(exposure, delta)
    error = max(1e-4, min(0.01, most / 500))
    points = 2 * most / error * math.sqrt(rounds * math.log(12_000 / delta) / 2)
    if points > PRV_POINTS:
        raise Unable(f"ε is too large for it ({points:.1e} grid points)")
    accountant = PRVAccountant()
    accountant.history = [(1 / math.sqrt(square), exposure.rate, count) for square, count in squares]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            epsilon = float(accountant.get_epsilon(delta, eps_error=error))
        except (ValueError, RuntimeError, ArithmeticError, MemoryError, AssertionError) as error_:
            raise Unable(str(error_) or type(error_).__name__) from None
    if not math.isfinite(epsilon):
        raise Unable("it answered with infinity")
    if epsilon > PRV_LARGEST:
        raise Unable(f"its arithmetic ends near ε = {PRV_LARGEST}")
    return max(0.0, epsilon)


def rdp(exposure: Exposure, delta: float) -> float:
    """Opacus' Rényi accountant, with orders close to 1 for large ε."""
    if exposure.participation == "fraction-kept":
        raise Unable("hospitals keep optimizer states (local.state), a history that its proof does not know")
    if exposure.participation == "fraction":
        return _rdp_without_replacement(exposure, delta)
    squares = _for_opacus(exposure)
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    orders = _orders()
    total = sum(
        compute_rdp(q=exposure.rate, noise_multiplier=1 / math.sqrt(square), steps=count, orders=orders)
        for square, count in squares
    )
    return _smallest(lambda: get_privacy_spent(orders=orders, rdp=total, delta=delta)[0])


def _rdp_without_replacement(exposure: Exposure, delta: float) -> float:
    """A fixed fraction: the proved amplification for replaced hospitals, or no amplification if that is less.

    Removing a hospital's contributions is one way of replacing it, so the bound holds for both relations.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    share = Fraction(exposure.rate).limit_denominator(10_000)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant([order for order in _orders() if order <= 64], relation)
    for square, count in exposure.squares:
        release = dp_accounting.GaussianDpEvent(1 / (bounds_moved("replace-one") * math.sqrt(square)))
        accountant.compose(
            dp_accounting.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, release), count
        )
    amplified = _smallest(lambda: accountant.get_epsilon(delta))
    if amplified >= known_participation(exposure, delta):
        raise Unable("the amplification proved for it buys nothing here")
    return amplified


def _orders() -> list[float]:
    close = [1 + 10 ** (power / 4) for power in range(-20, 0)]
    return [
        *close,
        *(1 + step / 10 for step in range(10, 100)),
        *map(float, range(11, 65)),
        128.0,
        256.0,
        512.0,
    ]


def _for_opacus(exposure: Exposure) -> tuple[tuple[float, int], ...]:
    _needs_poisson(exposure)
    if exposure.rate < 1 and exposure.neighbours == "replace-one":
        raise Unable("under Poisson sampling it knows add-or-remove neighbours only")
    return exposure.own_squares


def _needs_poisson(exposure: Exposure) -> None:
    if exposure.participation.startswith("fraction"):
        raise Unable("it does not know drawing without replacement")


def _smallest(compute: Callable[[], float]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the first or last one: still a bound
        return max(0.0, float(compute()))
