"""From events to ε: for a whole hospital and for one intermediary, for both neighbouring relations.

Everyone takes part: the exact Gaussian composition answers. Where hospitals are drawn, being drawn is a
secret that amplifies privacy, and that is proved for some cases only:

- a hospital under Poisson sampling: PLD (dp-accounting), PRV and RDP (Opacus);
- a hospital in a fixed fraction, drawn without replacement: the RDP bound of Wang, Balle and Kasiviswanathan
  (2019), which speaks of replaced hospitals;
- an intermediary: its hospital's v intermediaries are drawn together, so the others may show that it was
  drawn. Treating intermediaries as drawn one by one would promise too much. What is sure is the ε of an
  observer who knows who took part («known participation»), and the ε of its whole hospital.

The update and the quantile bits of one round share one draw, so a round is one release with their joint μ.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

from silodp.errors import InputError
from silodp.privacy.events import NEIGHBOURS, UNITS, Event, Neighbours, Participation, Unit
from silodp.privacy.gaussian import gaussian_epsilon, mixture_epsilon

Accountant = Literal["auto", "exact", "pld", "prv", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)

PRV_POINTS = 2**22
"""Opacus' PRV accountant is not asked for more grid points than this: it would take minutes and fail."""


@dataclass(frozen=True)
class Figure:
    """One ε, and who computed it."""

    epsilon: float
    accountant: str
    remark: str = ""


@dataclass(frozen=True)
class UnitEpsilon:
    hospital: float
    intermediary: float


@dataclass(frozen=True)
class Epsilon:
    """ε at one δ; infinite where something was released without noise.

    `hospital` and `intermediary` speak of add-or-remove neighbours.
    """

    hospital: float
    intermediary: float
    replace_one: UnitEpsilon
    accountant: str
    covers_everything: bool = True  # False where unprotected statistics were used beside the releases
    image: float | None = None  # where hospitals noise their own steps: for one image, at a δ of its own


def spent(
    events: Iterable[Event], delta: float, accountant: Accountant = "auto", image_delta: float | None = None
) -> Epsilon:
    """ε of all events together, for both units and both neighbouring relations."""
    events = list(events)
    table = figures(events, delta, accountant)
    remove, swap = ({unit: table[unit, relation].epsilon for unit in UNITS} for relation in NEIGHBOURS)
    names = {unit: table[unit, "add-or-remove"].accountant for unit in UNITS}
    same = names["hospital"] == names["intermediary"]
    images = [event for event in events if event.part == "image" and event.protected]
    image = None
    if images:
        squares = sum(event.part_mu**2 for event in images)
        image = gaussian_epsilon(math.sqrt(squares), image_delta or delta)
    return Epsilon(
        remove["hospital"],
        remove["intermediary"],
        UnitEpsilon(swap["hospital"], swap["intermediary"]),
        names["hospital"] if same else f"hospital {names['hospital']}, intermediary {names['intermediary']}",
        all(event.protected for event in events),
        image,
    )


def figures(
    events: Iterable[Event], delta: float, accountant: Accountant = "auto"
) -> dict[tuple[Unit, Neighbours], Figure]:
    """ε by unit and neighbouring relation, hospital first, each with the accountant that answered."""
    if not 0 < delta < 1:
        raise InputError(f"delta = {delta:g}: choose a chance between 0 and 1, such as 0.01")
    if accountant not in ACCOUNTANTS:
        raise InputError(f"accountant = {accountant}: choose one of {', '.join(ACCOUNTANTS)}")
    faced = _faced([event for event in events if event.protected])
    return {
        (unit, relation): _figure(faced[unit].by(relation), delta, accountant)
        for unit in UNITS
        for relation in NEIGHBOURS
    }


@dataclass(frozen=True)
class _Faced:
    """What one unit faces: the μ² of each round (for removal) with how many rounds have it."""

    squares: tuple[tuple[float, int], ...]
    rate: float
    participation: Participation
    neighbours: Neighbours = "add-or-remove"
    hospital: _Faced | None = None  # of an intermediary that is not its whole hospital

    def by(self, neighbours: Neighbours) -> _Faced:
        whole = self.hospital and self.hospital.by(neighbours)
        return replace(self, neighbours=neighbours, hospital=whole)

    @property
    def own_squares(self) -> tuple[tuple[float, int], ...]:
        """For these neighbours: replacing a unit moves the sum twice as far as removing it."""
        factor = 4 if self.neighbours == "replace-one" else 1
        return tuple((factor * square, count) for square, count in self.squares)

    @property
    def mu(self) -> float:
        return math.sqrt(sum(square * count for square, count in self.own_squares))


def _faced(events: list[Event]) -> dict[Unit, _Faced]:
    """What a hospital and an intermediary face in these rounds."""
    draws = {(event.participation, event.sampling_rate) for event in events} or {("all", 1.0)}
    if len(draws) > 1:
        raise InputError(f"ledger: hospitals were drawn by different rules ({draws}); account for them apart")
    ((participation, rate),) = draws
    if rate >= 1:
        participation, rate = "all", 1.0
    of_hospital: dict[int, float] = defaultdict(float)
    of_part: dict[int, float] = defaultdict(float)
    for event in events:
        of_hospital[event.round] += event.hospital_mu**2
        of_part[event.round] += event.part_mu**2
    hospital = _Faced(_counted(of_hospital.values()), rate, participation)
    part = replace(hospital, squares=_counted(of_part.values()), hospital=hospital)
    undivided = part.squares == hospital.squares or any(event.part == "image" for event in events)
    return {"hospital": hospital, "intermediary": hospital if undivided else part}


def _counted(squares: Iterable[float]) -> tuple[tuple[float, int], ...]:
    """Equal ones together; to twelve digits, so that a difference in the last bit makes no other kind."""
    return tuple(sorted(Counter(float(f"{square:.12g}") for square in squares).items()))


class _Unable(Exception):
    """An accountant that has no answer; the text says why."""


@lru_cache(maxsize=4096)
def _figure(faced: _Faced, delta: float, accountant: Accountant) -> Figure:
    if not faced.squares or math.isinf(faced.mu):
        return Figure(math.inf if faced.squares else 0.0, "exact")
    if faced.hospital is not None and faced.participation != "all" and accountant != "exact":
        # Both are true of the intermediary; the smaller one is the better statement.
        whole = _figure(faced.hospital, delta, accountant)
        known = Figure(_known_participation(faced, delta), "known participation", whole.remark)
        return min(known, whole, key=lambda figure: figure.epsilon)
    refused = []
    for name in _order(faced, accountant):
        try:
            epsilon = _ACCOUNTANTS[name](faced, delta)
        except _Unable as reason:
            refused.append(f"{name} has no answer: {reason}")
        else:
            return Figure(epsilon, name, "; ".join(refused))
    raise AssertionError("known participation and exact always answer")


def _order(faced: _Faced, accountant: Accountant) -> list[str]:
    """Who is asked, one after the other until one answers."""
    if faced.participation == "all":
        usual = ["exact"]
    elif faced.participation == "poisson":
        usual = ["pld", "prv", "rdp", "known participation"]
    else:
        usual = ["rdp", "known participation"]
    return usual if accountant == "auto" else [accountant, *(name for name in usual if name != accountant)]


def _exact(faced: _Faced, delta: float) -> float:
    """Every round counts in full: no amplification is claimed."""
    return gaussian_epsilon(faced.mu, delta)


def _known_participation(faced: _Faced, delta: float) -> float:
    return mixture_epsilon(faced.own_squares, faced.rate, delta)


def _pld(faced: _Faced, delta: float) -> float:
    """dp-accounting's privacy loss distributions, on a grid fine enough for the answer: an upper bound."""
    _needs_poisson(faced)
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_ONE if faced.neighbours == "replace-one" else relations.ADD_OR_REMOVE_ONE
    epsilon, finest = _exact(faced, delta), 1e-5
    for _ in range(3):
        interval = max(epsilon / 20_000, finest)
        accountant = PLDAccountant(relation, interval)
        for square, count in faced.squares:
            release = dp_accounting.GaussianDpEvent(1 / math.sqrt(square))
            if faced.rate < 1:
                release = dp_accounting.PoissonSampledDpEvent(faced.rate, release)
            accountant.compose(release, count)
        epsilon = float(accountant.get_epsilon(delta))
        if not math.isfinite(epsilon):
            raise _Unable("its grid does not reach so far")
        if interval <= max(epsilon / 10_000, finest):
            break
    return epsilon


def _prv(faced: _Faced, delta: float) -> float:
    """Opacus' PRV accountant (Gopi, Lee and Wutschitz 2021)."""
    squares = _for_opacus(faced)
    from opacus.accountants import PRVAccountant

    rounds = sum(count for _, count in squares)
    error = 0.01
    mesh = error / math.sqrt(rounds * math.log(12_000 / delta) / 2)
    points = 2 * _exact(faced, delta) / mesh
    if points > PRV_POINTS:
        raise _Unable(f"ε is too large for it ({points:.1e} grid points)")
    accountant = PRVAccountant()
    accountant.history = [(1 / math.sqrt(square), faced.rate, count) for square, count in squares]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            epsilon = float(accountant.get_epsilon(delta, eps_error=error))
        except (ValueError, RuntimeError, ArithmeticError, MemoryError, AssertionError) as error_:
            raise _Unable(str(error_) or type(error_).__name__) from None
    if not math.isfinite(epsilon):
        raise _Unable("it answered with infinity")
    return epsilon


def _rdp(faced: _Faced, delta: float) -> float:
    """Opacus' Rényi accountant, with orders close to 1 for large ε."""
    if faced.participation == "fraction":
        return _rdp_without_replacement(faced, delta)
    squares = _for_opacus(faced)
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    orders = _orders()
    total = sum(
        compute_rdp(q=faced.rate, noise_multiplier=1 / math.sqrt(square), steps=count, orders=orders)
        for square, count in squares
    )
    return _smallest(lambda: get_privacy_spent(orders=orders, rdp=total, delta=delta)[0])


def _rdp_without_replacement(faced: _Faced, delta: float) -> float:
    """A fixed fraction: the proved amplification for replaced hospitals, or no amplification if that is less.

    Removing a hospital's contributions is one way of replacing it, so the bound holds for both relations.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    share = Fraction(faced.rate).limit_denominator(10_000)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant([order for order in _orders() if order <= 64], relation)
    for square, count in faced.squares:
        release = dp_accounting.GaussianDpEvent(1 / (2 * math.sqrt(square)))
        accountant.compose(
            dp_accounting.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, release), count
        )
    amplified = _smallest(lambda: accountant.get_epsilon(delta))
    if amplified >= _known_participation(faced, delta):
        raise _Unable("the amplification proved for it buys nothing here")
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


def _for_opacus(faced: _Faced) -> tuple[tuple[float, int], ...]:
    _needs_poisson(faced)
    if faced.rate < 1 and faced.neighbours == "replace-one":
        raise _Unable("under Poisson sampling it knows add-or-remove neighbours only")
    return faced.own_squares


def _needs_poisson(faced: _Faced) -> None:
    if faced.participation == "fraction":
        raise _Unable("it does not know drawing without replacement")


def _smallest(compute: Callable[[], float]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the first or last one: still a bound
        return float(compute())


_ACCOUNTANTS: dict[str, Callable[[_Faced, float], float]] = {
    "exact": _exact,
    "pld": _pld,
    "prv": _prv,
    "rdp": _rdp,
    "known participation": _known_participation,
}
