"""A release as an immutable record. Accountants read events; nothing else tells them what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Event:
    """One thing that left the door.

    Attributes:
        round: counted from 1.
        released: what it was.
        protected: False for a statistic that was used without noise; no ε covers it.
        noise_multiplier: standard deviation of the noise over what ONE INTERMEDIARY can move the sum by.
        contributions: intermediaries of one hospital (v): one hospital can move the sum v times as far.
        clip_bound: C of this round, where one applied.
        participation: rule by which hospitals took part.
        sampling_rate: chance or share of a hospital's taking part.
        neighbours: the neighbouring relation that the multiplier speaks of: the same federation with one
            unit's contributions replaced by nothing. Who else is asked stays as it was.
        digest: hash of the released numbers. A round redone after a crash is the same release only if
            this is the same; otherwise it is a second event.
    """

    round: int
    released: Literal["model update", "clip quantile", "median norm", "noise ratio"]
    protected: bool
    noise_multiplier: float
    contributions: int
    clip_bound: float | None
    participation: Literal["all", "poisson", "fraction"]
    sampling_rate: float
    neighbours: Literal["add-or-remove"] = "add-or-remove"
    digest: str = ""

    @property
    def hospital_noise_multiplier(self) -> float:
        """z/v: a whole hospital contributes v clipped updates."""
        return self.noise_multiplier / self.contributions
