"""From events to ε: for a whole hospital and for one intermediary, for both neighbouring relations.

Everyone takes part: the exact Gaussian composition answers. Where hospitals are drawn, being drawn is a
secret that amplifies privacy, and that is proved for some cases only:

- a hospital under Poisson sampling: PLD (dp-accounting), PRV and RDP (Opacus);
- a hospital in a fixed fraction, drawn without replacement: the RDP bound of Wang, Balle and Kasiviswanathan
  (2019), which speaks of replaced hospitals and of rounds that share no hidden history: where hospitals keep
  optimizer states from round to round, «known participation» answers;
- an intermediary: its hospital's v intermediaries are drawn together, so the others may show that it was
  drawn. Treating intermediaries as drawn one by one would promise too much. What is sure is the ε of an
  observer who knows who took part («known participation»), and the ε of its whole hospital.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from silodp.errors import InputError
from silodp.privacy.composition import Unable, exact, known_participation, pld, prv, rdp
from silodp.privacy.events import NEIGHBOURS, UNITS, Event, Neighbours, Participation, Unit
from silodp.privacy.exposure import Exposure, exposures, withdrawn
from silodp.privacy.gaussian import gaussian_epsilon

Accountant = Literal["auto", "exact", "pld", "prv", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
AMPLIFYING: tuple[Accountant, ...] = ("pld", "prv", "rdp")  # where hospitals are drawn


@dataclass(frozen=True)
class EpsilonBound:
    """An upper bound on ε for one unit and one neighbouring relation.

    Attributes:
        epsilon: infinite where something was released without noise; 0 where nothing was released.
        accountant: which one computed it: one of `ACCOUNTANTS`, or «known participation».
        remark: why the accountants asked before it had no answer, or why the unit has no ε of its own.
    """

    epsilon: float
    accountant: str
    remark: str = ""


@dataclass(frozen=True)
class UnitEpsilon:
    """ε by unit, for one neighbouring relation."""

    hospital: float
    intermediary: float


@dataclass(frozen=True)
class Epsilon:
    """ε at one δ, for both units and both neighbouring relations; infinite where nothing was noised.

    `hospital` and `intermediary` speak of add-or-remove neighbours: the unit takes part, or contributes
    nothing. In `replace_one` the unit is exchanged for another one.
    """

    hospital: float
    intermediary: float
    replace_one: UnitEpsilon
    accountant: str
    covers_everything: bool = True  # False where unprotected statistics were used beside the releases
    withdrawn: str = ""  # why the intermediary's ε are the hospital's; empty where they are its own
    image: float | None = None  # where hospitals noise their own steps: for one image, at a δ of its own
    amplified: bool = False  # whether a bound counts on nobody knowing which hospitals took part


def spent(
    events: Iterable[Event], delta: float, accountant: Accountant = "auto", image_delta: float | None = None
) -> Epsilon:
    """ε of all events together, for both units and both neighbouring relations.

    Args:
        events: all releases of a run so far, in any order; of one participation rule and rate.
        delta: δ for a hospital and for an intermediary, between 0 and 1.
        accountant: which one is asked first; «auto»: the tightest that is proved for the participation.
        image_delta: δ for one image, where hospitals add noise to their own steps (DP-SGD); default: `delta`.
    """
    events = list(events)
    table = epsilon_bounds(events, delta, accountant)
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
        withdrawn(events),
        image,
        any(event.sampling_rate < 1 for event in events)
        and any(one.accountant in AMPLIFYING for one in table.values()),
    )


def epsilon_bounds(
    events: Iterable[Event], delta: float, accountant: Accountant = "auto"
) -> dict[tuple[Unit, Neighbours], EpsilonBound]:
    """ε by unit and neighbouring relation, hospital first, each with the accountant that answered.

    Args and refusals are those of `spent`. Each bound holds by itself at `delta`; they are not to be added.
    """
    events = list(events)
    exposed, why = _checked(events, delta, accountant), withdrawn(events)
    table = {
        (unit, relation): _bound(exposed[unit].by(relation), delta, accountant)
        for unit in UNITS
        for relation in NEIGHBOURS
    }
    if why:
        for relation in NEIGHBOURS:
            table["intermediary", relation] = replace(table["intermediary", relation], remark=why)
    return table


def epsilon_bound(
    events: Iterable[Event], delta: float, unit: Unit, neighbours: Neighbours, accountant: Accountant = "auto"
) -> EpsilonBound:
    """One of `epsilon_bounds`, without computing the others: what a budget asks before every round."""
    return _bound(_checked(events, delta, accountant)[unit].by(neighbours), delta, accountant)


def hospital_epsilon(events: Sequence[Event], delta: float) -> float:
    """ε of a whole hospital, for add-or-remove neighbours; 0 without events."""
    return epsilon_bound(events, delta, "hospital", "add-or-remove").epsilon


def as_dict(bounds: dict[tuple[Unit, Neighbours], EpsilonBound]) -> dict[str, Any]:
    """Bounds as JSON has them: `epsilon` for add-or-remove, `replace_one` beside it, hospital first."""

    def by_unit(field: str, relation: Neighbours) -> dict[Unit, Any]:
        return {unit: getattr(bounds[unit, relation], field) for unit in UNITS}

    return {
        "epsilon": by_unit("epsilon", "add-or-remove"),
        "replace_one": by_unit("epsilon", "replace-one"),
        "accountant": {
            "epsilon": by_unit("accountant", "add-or-remove"),
            "replace_one": by_unit("accountant", "replace-one"),
        },
        "remarks": list(dict.fromkeys(bound.remark for bound in bounds.values() if bound.remark)),
    }


def refuse_delta(delta: float) -> None:
    """Refuses a δ that is not between 0 and 1: at 0 no Gaussian release has an ε, at 1 any ε is empty."""
    if not 0 < delta < 1:
        raise InputError(f"delta = {delta:g}: choose a chance between 0 and 1, such as 0.01")


def _checked(events: Iterable[Event], delta: float, accountant: Accountant) -> dict[Unit, Exposure]:
    refuse_delta(delta)
    if accountant not in ACCOUNTANTS:
        raise InputError(f"accountant = {accountant}: choose one of {', '.join(ACCOUNTANTS)}")
    return exposures(events)


@lru_cache(maxsize=4096)
def _bound(exposure: Exposure, delta: float, accountant: Accountant) -> EpsilonBound:
    """The bound of the first accountant that has an answer. Cached: a run asks again after every round."""
    if not exposure.squares or math.isinf(exposure.mu):
        return EpsilonBound(math.inf if exposure.squares else 0.0, "exact")
    if exposure.hospital is not None and exposure.participation != "all" and accountant != "exact":
        # Both are true of the intermediary; the smaller one is the better statement.
        whole = _bound(exposure.hospital, delta, accountant)
        known = EpsilonBound(known_participation(exposure, delta), "known participation", whole.remark)
        return min(known, whole, key=lambda bound: bound.epsilon)
    usual = _USUAL[exposure.participation]
    order = usual if accountant == "auto" else dict.fromkeys((accountant, *usual))
    refused = []
    for name in order:
        try:
            epsilon = _ACCOUNTANTS[name](exposure, delta)
        except Unable as reason:
            refused.append(f"{name} has no answer: {reason}")
        else:
            return EpsilonBound(epsilon, name, "; ".join(refused))
    raise AssertionError("known participation and exact always answer")


_USUAL: dict[Participation, tuple[str, ...]] = {
    "all": ("exact",),
    "poisson": ("pld", "prv", "rdp", "known participation"),
    "fraction": ("rdp", "known participation"),
    "fraction-kept": ("known participation",),
}
"""Who is asked, one after the other until one answers: the tightest first, the last one always answers."""

_ACCOUNTANTS: dict[str, Callable[[Exposure, float], float]] = {
    "exact": exact,
    "pld": pld,
    "prv": prv,
    "rdp": rdp,
    "known participation": known_participation,
}
