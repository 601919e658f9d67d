"""A release as an immutable record. Accountants read events; nothing else tells them what happened."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

Participation = Literal["all", "poisson", "fraction", "fraction-kept"]
Unit = Literal["hospital", "intermediary"]
Neighbours = Literal["add-or-remove", "replace-one"]

Count = Annotated[int, Field(ge=1, le=10**9)]  # rounds, parts or steps; no run has more
NonNegative = Annotated[float, Field(ge=0, le=1e100)]  # a clip bound or a noise multiplier

UNITS: tuple[Unit, ...] = ("hospital", "intermediary")
NEIGHBOURS: tuple[Neighbours, ...] = ("add-or-remove", "replace-one")


def bounds_moved(neighbours: Neighbours) -> int:
    """How many clip bounds C one clipped contribution can move a sum by.

    By C if it is added or removed; by 2C if it is replaced, for the new one may point the other way.
    """
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

    round: Count
    released: Literal["model update", "clip quantile", "median norm", "noise ratio"]
    protected: bool
    noise_multiplier: NonNegative
    contributions: Count
    clip_bound: NonNegative | None
    participation: Participation
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    neighbours: Literal["add-or-remove"] = "add-or-remove"
    part: Literal["intermediary", "image"] = "intermediary"
    steps: Count = 1
    passes: Count = 1
    digest: str = ""

    @property
    def hospital_mu(self) -> float:
        """μ of this event for a whole hospital: v/z, for it contributes v clipped updates.

        The release is μ-GDP (Dong, Roth and Su 2022) for add-or-remove neighbours; times √steps where the
        hospital's own steps are noised, for they compose. Infinite without noise.
        """
        return self._mu(self.contributions, self.steps)

    @property
    def part_mu(self) -> float:
        """μ of this event for one part, an intermediary or an image: 1/z, times √passes."""
        return self._mu(1, self.passes)

    def _mu(self, contributions: int, steps: int) -> float:
        if self.noise_multiplier == 0:
            return math.inf
        return contributions * math.sqrt(steps) / self.noise_multiplier


def read_event(fields: Mapping[str, Any]) -> Event:
    """An event from the JSON values of a ledger or a plan.

    Raises:
        ValueError: a value is of another type than the field's annotation says, or out of its range.
        TypeError: a field is missing or unknown.
    """
    event = Event(**fields)  # the very values: their JSON is what a ledger's hash was made of
    _event_type().validate_json(json.dumps(fields), strict=True)
    return event


@cache
def _event_type() -> TypeAdapter[Event]:
    return TypeAdapter(Event)


def hospital_noise_multiplier(events: Sequence[Event]) -> float:
    """Of the last round, all its releases together, for a whole hospital: z/v. Zero without noise.

    Update and quantile bits count together: noise multipliers compose as 1/z² = Σ 1/z_i².
    """
    last = events[-1].round if events else 0
    mus = [event.hospital_mu for event in events if event.round == last and event.protected]
    return 1 / math.hypot(*mus) if mus else 0.0
