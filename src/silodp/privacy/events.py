"""A release as an immutable record. Accountants read events; nothing else tells them what happened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

Participation = Literal["all", "poisson", "fraction", "fraction-kept"]
Unit = Literal["hospital", "intermediary"]
Neighbours = Literal["add-or-remove", "replace-one"]

LARGEST_COUNT = 10**9  # rounds, parts or steps; no run has more
LARGEST_NUMBER = 1e100  # of a clip bound or a noise multiplier

UNITS: tuple[Unit, ...] = ("hospital", "intermediary")
NEIGHBOURS: tuple[Neighbours, ...] = ("add-or-remove", "replace-one")


def bounds_moved(neighbours: Neighbours) -> int:
    """How many clip bounds one clipped contribution can move a sum by: to nothing, or to the other side."""
    return 2 if neighbours == "replace-one" else 1


@dataclass(frozen=True)
class Event:
    """One release, or one thing that was used without noise.

    Attributes:
        round: counted from 1.
        released: what it was.
        protected: False for a statistic that was used without noise; no ε covers it.
        noise_multiplier: standard deviation of the noise over what ONE PART of a hospital can move.
        contributions: parts of one hospital in the sum: it can move the sum that many times as far.
        clip_bound: C of this round, where one applied.
        participation: rule by which hospitals took part; fraction-kept: a fixed number of them, which keep
            optimizer states across rounds, a history that the amplification by drawing is not proved for.
        sampling_rate: chance of one hospital's taking part.
        neighbours: the neighbouring relation that the multiplier speaks of: the same federation with one
            unit's contributions replaced by nothing. Who else is asked stays as it was, and so does a
            hospital's own noise where parts are images. Replacing one unit by another moves the sum at
            most twice as far; accountants derive that.
        part: what a part is: an intermediary; or an image, where hospitals add noise to their own steps.
        steps: noisy steps of this round that the whole hospital takes part in.
        passes: noisy steps of this round that one part takes part in.
        digest: hash of the released numbers. A round redone after a crash is the same release only if
            this is the same; otherwise it is a second event.
    """

    round: int
    released: Literal["model update", "clip quantile", "median norm", "noise ratio"]
    protected: bool
    noise_multiplier: float
    contributions: int
    clip_bound: float | None
    participation: Participation
    sampling_rate: float
    neighbours: Literal["add-or-remove"] = "add-or-remove"
    part: Literal["intermediary", "image"] = "intermediary"
    steps: int = 1
    passes: int = 1
    digest: str = ""

    @property
    def hospital_mu(self) -> float:
        """μ of this event for a whole hospital: v/z, for it contributes v clipped updates."""
        return self._mu(self.contributions, self.steps)

    @property
    def part_mu(self) -> float:
        """μ of this event for one part: 1/z."""
        return self._mu(1, self.passes)

    def _mu(self, contributions: int, steps: int) -> float:
        if self.noise_multiplier == 0:
            return math.inf
        return contributions * math.sqrt(steps) / self.noise_multiplier


def read_event(fields: Mapping[str, Any]) -> Event:
    """An event as a ledger tells it, every value of its kind and in its range; else ValueError."""
    event = Event(**fields)
    kinds = _kinds()
    for name, value in vars(event).items():
        choices = get_args(kinds[name]) if get_origin(kinds[name]) is Literal else ()
        if not (value in choices if choices else _fits(value, kinds[name])):
            raise ValueError(f"{name} cannot be {value!r}")
    if event.noise_multiplier < 0 or not 0 < event.sampling_rate <= 1:
        raise ValueError("noise or a chance that cannot be")
    return event


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(Event)


def _fits(value: Any, kind: Any) -> bool:
    if kind is int:
        return type(value) is int and 0 < value <= LARGEST_COUNT
    if kind is float:
        return type(value) in (int, float) and abs(value) <= LARGEST_NUMBER  # NaN is not
    return type(value) in (get_args(kind) or (kind,)) or (kind == float | None and _fits(value, float))


def hospital_noise_multiplier(events: Sequence[Event]) -> float:
    """Of the last round, all its releases together, for a whole hospital: z/v. Zero without noise."""
    last = events[-1].round if events else 0
    mus = [event.hospital_mu for event in events if event.round == last and event.protected]
    return 1 / math.hypot(*mus) if mus else 0.0
