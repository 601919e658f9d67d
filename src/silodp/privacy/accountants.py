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
from silodp.privacy.events import NEIGHBOURS, UNITS, Event, Neighbours, Unit
from silodp.privacy.exposure import Exposure, exposures, withdrawn
from silodp.privacy.gaussian import gaussian_epsilon

Accountant = Literal["auto", "exact", "pld", "prv", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
AMPLIFYING: tuple[Accountant, ...] = ("pld", "prv", "rdp")  # where hospitals are drawn


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
    withdrawn: str = ""  # why the intermediary's figures are the hospital's; empty where they are its own
    image: float | None = None  # where hospitals noise their own steps: for one image, at a δ of its own
    amplified: bool = False  # whether a figure counts on nobody knowing which hospitals took part


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
        withdrawn(events),
        image,
        any(event.sampling_rate < 1 for event in events)
        and any(one.accountant in AMPLIFYING for one in table.values()),
    )


def figures(
    events: Iterable[Event], delta: float, accountant: Accountant = "auto"
) -> dict[tuple[Unit, Neighbours], Figure]:
    """ε by unit and neighbouring relation, hospital first, each with the accountant that answered."""
    events = list(events)
    exposed, why = _checked(events, delta, accountant), withdrawn(events)
    table = {
        (unit, relation): _figure(exposed[unit].by(relation), delta, accountant)
        for unit in UNITS
        for relation in NEIGHBOURS
    }
    if why:
        for relation in NEIGHBOURS:
            table["intermediary", relation] = replace(table["intermediary", relation], remark=why)
    return table


def figure(
    events: Iterable[Event], delta: float, unit: Unit, neighbours: Neighbours, accountant: Accountant = "auto"
) -> Figure:
    """One of the figures."""
    return _figure(_checked(events, delta, accountant)[unit].by(neighbours), delta, accountant)


def hospital_epsilon(events: Sequence[Event], delta: float) -> float:
    """ε of a whole hospital, add-or-remove; nothing costs nothing."""
    return figure(events, delta, "hospital", "add-or-remove").epsilon if events else 0.0


def as_dict(figures: dict[tuple[Unit, Neighbours], Figure]) -> dict[str, Any]:
    """Figures as JSON has them: `epsilon` for add-or-remove, `replace_one` beside it, hospital first."""
    names: dict[str, Neighbours] = {"epsilon": "add-or-remove", "replace_one": "replace-one"}
    table = {name: {unit: figures[unit, relation] for unit in UNITS} for name, relation in names.items()}
    return {
        **{name: {unit: figure.epsilon for unit, figure in row.items()} for name, row in table.items()},
        "accountant": {
            name: {unit: figure.accountant for unit, figure in row.items()} for name, row in table.items()
        },
        "remarks": list(dict.fromkeys(figure.remark for figure in figures.values() if figure.remark)),
    }


def refuse_delta(delta: float) -> None:
    """δ is a chance, and neither certain nor impossible."""
    if not 0 < delta < 1:
        raise InputError(f"delta = {delta:g}: choose a chance between 0 and 1, such as 0.01")


def _checked(events: Iterable[Event], delta: float, accountant: Accountant) -> dict[Unit, Exposure]:
    refuse_delta(delta)
    if accountant not in ACCOUNTANTS:
        raise InputError(f"accountant = {accountant}: choose one of {', '.join(ACCOUNTANTS)}")
    return exposures(events)


@lru_cache(maxsize=4096)
def _figure(exposure: Exposure, delta: float, accountant: Accountant) -> Figure:
    if not exposure.squares or math.isinf(exposure.mu):
        return Figure(math.inf if exposure.squares else 0.0, "exact")
    if exposure.hospital is not None and exposure.participation != "all" and accountant != "exact":
        # Both are true of the intermediary; the smaller one is the better statement.
        whole = _figure(exposure.hospital, delta, accountant)
        known = Figure(known_participation(exposure, delta), "known participation", whole.remark)
        return min(known, whole, key=lambda figure: figure.epsilon)
    refused = []
    for name in _order(exposure, accountant):
        try:
            epsilon = _ACCOUNTANTS[name](exposure, delta)
        except Unable as reason:
            refused.append(f"{name} has no answer: {reason}")
        else:
            return Figure(epsilon, name, "; ".join(refused))
    raise AssertionError("known participation and exact always answer")


def _order(exposure: Exposure, accountant: Accountant) -> list[str]:
    """Who is asked, one after the other until one answers."""
    if exposure.participation == "all":
        usual = ["exact"]
    elif exposure.participation == "poisson":
        usual = ["pld", "prv", "rdp", "known participation"]
    elif exposure.participation == "fraction":
        usual = ["rdp", "known participation"]
    else:
        usual = ["known participation"]
    return usual if accountant == "auto" else [accountant, *(name for name in usual if name != accountant)]


_ACCOUNTANTS: dict[str, Callable[[Exposure, float], float]] = {
    "exact": exact,
    "pld": pld,
    "prv": prv,
    "rdp": rdp,
    "known participation": known_participation,
}
