"""From what a unit faces to its ε: the exact formula, and the accountants of Opacus and dp-accounting.

Each function takes an `Exposure` and a δ between 0 and 1 and returns an upper bound on the ε of all its
rounds together, or raises `Unable`. Libraries are imported when asked, since that takes seconds.
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

ORDERS: list[float] = [
    *(1 + 10 ** (power / 4) for power in range(-20, 0)),
    *(1 + step / 10 for step in range(10, 100)),
    *map(float, (*range(11, 65), 128, 256, 512)),
]
"""Orders α of Rényi divergences. Each gives a bound, and the smallest counts."""


class Unable(Exception):
    """An accountant that has no answer; the text says why."""


def exact(exposure: Exposure, delta: float) -> float:
    """Every round counts in full, whoever was drawn: no amplification is claimed.

    T Gaussian releases are one with μ² = Σ μ_t² (Dong, Roth and Su 2022, corollary 3.3), so nothing is lost.
    """
    return gaussian_epsilon(exposure.mu, delta)


def known_participation(exposure: Exposure, delta: float) -> float:
    """ε against an observer who learns after each round whether the unit took part.

    Needs only that a unit takes part with chance `rate` in each round, independently of the others. Whoever
    does not learn it knows less, so the bound holds for every participation, with or without states kept.
    """
    return mixture_epsilon(exposure.own_squares, exposure.rate, delta)


def pld(exposure: Exposure, delta: float) -> float:
    """dp-accounting's privacy loss distributions (Koskela et al. 2020), for drawing by Poisson sampling.

    They are discretised pessimistically, so the answer is an upper bound; the grid follows the losses.
    """
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
    """Opacus' PRV accountant (Gopi, Lee and Wutschitz 2021), for drawing by Poisson sampling.

    It is asked for the upper end of an estimate with an error of one part in 500 of the exact ε, between
    0.0001 and 0.01. It has no answer where ε is large.
    """
    squares = _for_opacus(exposure)
    from opacus.accountants import PRVAccountant

    rounds, most = sum(count for _, count in squares), exact(exposure, delta)
    error = max(1e-4, min(0.01, most / 500))
    points = 2 * most / error * math.sqrt(rounds * math.log(12_000 / delta) / 2)
    if points > PRV_POINTS:
        raise Unable(f"ε is too large for it ({points:.1e} grid points)")
    accountant = PRVAccountant()
    accountant.history = [(1 / math.sqrt(square), exposure.rate, count) for square, count in squares]
    with warnings.catch_warnings(action="ignore"):
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
    """Rényi accountants: Opacus' for Poisson sampling (Mironov, Talwar and Zhang 2019), dp-accounting's for a
    fixed fraction. Orders close to 1 serve large ε."""
    if exposure.participation == "fraction-kept":
        raise Unable("hospitals keep optimizer states (local.state), a history that its proof does not know")
    if exposure.participation == "fraction":
        return _rdp_without_replacement(exposure, delta)
    squares = _for_opacus(exposure)
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    total = sum(
        compute_rdp(q=exposure.rate, noise_multiplier=1 / math.sqrt(square), steps=count, orders=ORDERS)
        for square, count in squares
    )
    return _smallest(lambda: get_privacy_spent(orders=ORDERS, rdp=total, delta=delta)[0])


def _rdp_without_replacement(exposure: Exposure, delta: float) -> float:
    """A fixed fraction: the proved amplification for replaced hospitals, or no amplification if that is less.

    The bound is theorem 27 of Wang, Balle and Kasiviswanathan (2019). Removing a hospital's contributions is
    one way of replacing it, so it holds for both relations.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    share = Fraction(exposure.rate).limit_denominator(10_000)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant([order for order in ORDERS if order <= 64], relation)
    for square, count in exposure.squares:
        release = dp_accounting.GaussianDpEvent(1 / (bounds_moved("replace-one") * math.sqrt(square)))
        accountant.compose(
            dp_accounting.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, release), count
        )
    amplified = _smallest(lambda: accountant.get_epsilon(delta))
    if amplified >= known_participation(exposure, delta):
        raise Unable("the amplification proved for it buys nothing here")
    return amplified


def _for_opacus(exposure: Exposure) -> tuple[tuple[float, int], ...]:
    """μ² of each round with how many rounds have it, where Opacus' accountants know the case."""
    _needs_poisson(exposure)
    if exposure.rate < 1 and exposure.neighbours == "replace-one":
        raise Unable("under Poisson sampling it knows add-or-remove neighbours only")
    return exposure.own_squares


def _needs_poisson(exposure: Exposure) -> None:
    if exposure.participation.startswith("fraction"):
        raise Unable("it does not know drawing without replacement")


def _smallest(compute: Callable[[], float]) -> float:
    with warnings.catch_warnings(action="ignore"):  # the best order may be the first or last: still a bound
        return max(0.0, float(compute()))
