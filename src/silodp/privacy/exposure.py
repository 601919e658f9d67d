"""What a unit faces in a run: how far each round could give it away.

The update and the quantile bits of one round share one draw of the hospitals, so a round is one release with
their joint μ.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from silodp.errors import InputError
from silodp.privacy.events import Event, Neighbours, Participation, Unit, bounds_moved


@dataclass(frozen=True)
class Exposure:
    """What one unit faces in all rounds; all that an accountant needs to know.

    Attributes:
        squares: (μ² of a round in which the unit takes part, for its removal; how many such rounds).
        rate: chance of the unit's taking part in a round.
        participation: rule by which hospitals are drawn.
        neighbours: which relation is asked about.
        hospital: what its hospital faces; None for a hospital, and for an intermediary that is a whole one.
    """

    squares: tuple[tuple[float, int], ...]
    rate: float
    participation: Participation
    neighbours: Neighbours = "add-or-remove"
    hospital: Exposure | None = None

    def by(self, neighbours: Neighbours) -> Exposure:
        """The same, asked about another relation."""
        whole = self.hospital and self.hospital.by(neighbours)
        return replace(self, neighbours=neighbours, hospital=whole)

    @property
    def own_squares(self) -> tuple[tuple[float, int], ...]:
        """For these neighbours: replacing a unit moves the sum farther than removing it."""
        factor = bounds_moved(self.neighbours) ** 2
        return tuple((factor * square, count) for square, count in self.squares)

    @property
    def mu(self) -> float:
        """μ of all rounds together if the unit takes part in each: μ² = Σ μ_t² (Dong, Roth and Su 2022)."""
        return math.sqrt(sum(square * count for square, count in self.own_squares))


def exposures(events: Iterable[Event]) -> dict[Unit, Exposure]:
    """What a hospital and an intermediary face in these rounds, for add-or-remove neighbours.

    Unprotected events add nothing: no ε covers them. Where v changed, or parts are images, an intermediary
    faces what its hospital does.

    Raises:
        InputError: hospitals were drawn by different rules; no accountant here composes those.
    """
    events = [event for event in events if event.protected]
    draws = {(event.participation, event.sampling_rate) for event in events} or {("all", 1.0)}
    if len(draws) > 1:
        raise InputError(f"ledger: hospitals were drawn by different rules ({draws}); account for them apart")
    ((participation, rate),) = draws
    if rate >= 1:
        participation, rate = "all", 1.0
    hospital = Exposure(_squares((event.round, event.hospital_mu) for event in events), rate, participation)
    of_part = _squares((event.round, event.part_mu) for event in events)
    part = replace(hospital, squares=of_part, hospital=hospital)
    undivided = part.squares == hospital.squares or any(event.part == "image" for event in events)
    return {"hospital": hospital, "intermediary": hospital if undivided or withdrawn(events) else part}


def withdrawn(events: Iterable[Event]) -> str:
    """Why no ε is an intermediary's own and the hospital's stands in its place; empty where there is one.

    An intermediary is a fixed set of a hospital's patients or images as long as v is. Another v deals them
    out anew: nobody is then the unit that contributed once to each round.
    """
    counts = {event.contributions for event in events if event.protected and event.part == "intermediary"}
    if len(counts) < 2:
        return ""
    return (
        f"v went from {min(counts)} to {max(counts)}, and another v deals a hospital's images out anew: no "
        "intermediary lasted, so the hospital's ε stands for it"
    )


def _squares(releases: Iterable[tuple[int, float]]) -> tuple[tuple[float, int], ...]:
    """From the round and the μ of each release: (μ² of a round, how many rounds have it), in growing order.

    To twelve digits, so that rounds which differ in the last bit are alike.
    """
    by_round: dict[int, float] = defaultdict(float)
    for number, mu in releases:
        by_round[number] += mu**2
    return tuple(sorted(Counter(float(f"{square:.12g}") for square in by_round.values()).items()))
