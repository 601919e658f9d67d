"""The inverse of the accountants: the noise that a promised ε needs, and the rounds that a budget affords.

For a federation in which every round has the same v, noise and participation. ε grows with rounds and falls
with noise, so both are found by bisection on the very accountants that count a run's ledger.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from silodp.errors import InputError
from silodp.privacy.accountants import (
    Accountant,
    EpsilonBound,
    as_dict,
    epsilon_bound,
    epsilon_bounds,
    refuse_delta,
)
from silodp.privacy.events import Event, Neighbours, Participation, Unit, bounds_moved
from silodp.privacy.gaussian import gaussian_mu

MOST_ROUNDS = 100_000
MOST_EPSILON = 1e9


@dataclass(frozen=True)
class Setting:
    """A federation as an accountant sees it before it exists: the same v and the same noise every round.

    Attributes:
        delta: δ for both units, between 0 and 1.
        intermediaries: v of each hospital.
        participation: rule by which hospitals are drawn; see `Event`.
        sampling_rate: chance of one hospital's taking part in a round, above 0 and at most 1.
        accountant: which one is asked first.
    """

    delta: float
    intermediaries: int = 1
    participation: Participation = "all"
    sampling_rate: float = 1.0
    accountant: Accountant = "auto"

    def __post_init__(self) -> None:
        refuse_delta(self.delta)
        if self.intermediaries < 1:
            raise InputError(
                f"intermediaries = {self.intermediaries}: a hospital is at least one; use 1 or more"
            )
        if not 0 < self.sampling_rate <= 1:
            raise InputError(f"sample rate = {self.sampling_rate:g}: choose a share above 0 and at most 1")

    def events(self, noise_multiplier: float, rounds: int) -> list[Event]:
        """The releases of `rounds` rounds: one model update each, with z = `noise_multiplier`."""
        if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
            raise InputError(
                f"noise multiplier = {noise_multiplier:g}: choose 0 (no privacy) or more, such as 1.0"
            )
        _refuse_rounds(rounds)
        drawn = (self.participation, self.sampling_rate)
        return [
            Event(number, "model update", True, noise_multiplier, self.intermediaries, None, *drawn)
            for number in range(1, rounds + 1)
        ]

    def figures(self, noise_multiplier: float, rounds: int) -> dict[tuple[Unit, Neighbours], EpsilonBound]:
        """ε of so many rounds by unit and neighbouring relation, hospital first."""
        return epsilon_bounds(self.events(noise_multiplier, rounds), self.delta, self.accountant)


@dataclass(frozen=True)
class Target:
    """An ε that must hold for a unit and a neighbouring relation, at the δ of a `Setting`."""

    epsilon: float
    unit: Unit = "hospital"
    neighbours: Neighbours = "add-or-remove"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= MOST_EPSILON:
            raise InputError(f"target epsilon = {self.epsilon:g}: choose a number above 0, such as 10")


@dataclass(frozen=True)
class Answer:
    """A setting with its noise and rounds, and what they cost."""

    setting: Setting
    noise_multiplier: float
    rounds: int
    figures: dict[tuple[Unit, Neighbours], EpsilonBound]

    @property
    def noise_multipliers(self) -> dict[Unit, float]:
        """Noise over what a unit can move the sum by: z/v for a hospital, z for an intermediary."""
        hospital = self.noise_multiplier / self.setting.intermediaries
        return {"hospital": hospital, "intermediary": self.noise_multiplier}

    def to_dict(self) -> dict[str, Any]:
        """For JSON: ε by neighbouring relation and unit, beside what it was computed from."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "noise_multipliers": self.noise_multipliers,
            "rounds": self.rounds,
            "intermediaries": self.setting.intermediaries,
            "delta": self.setting.delta,
            "participation": self.setting.participation,
            "sample_rate": self.setting.sampling_rate,
            **as_dict(self.figures),
        }


def answer(
    setting: Setting, rounds: int, noise_multiplier: float | None = None, target: Target | None = None
) -> Answer:
    """What noise and rounds cost; with a target the noise it needs, or with both the rounds it affords.

    Args:
        setting: v, participation, δ and accountant.
        rounds: T; not looked at where noise and target are both given, for then it is the answer.
        noise_multiplier: z, the noise over the clip bound; None: found for `target`.
        target: the ε to keep; None: `noise_multiplier` is taken as it is.
    """
    if target is None:
        if noise_multiplier is None:
            raise InputError("privacy: give a noise multiplier or a target epsilon")
    elif noise_multiplier is None:
        noise_multiplier = noise_for(target, setting, rounds)
    else:
        rounds = affordable_rounds(target, setting, noise_multiplier)
        if not rounds:
            raise InputError(
                f"target epsilon = {target.epsilon:g}: not one round at noise multiplier "
                f"{noise_multiplier:g}; one round needs {noise_for(target, setting, 1):.4g}"
            )
    return Answer(setting, noise_multiplier, rounds, setting.figures(noise_multiplier, rounds))


def noise_for(target: Target, setting: Setting, rounds: int) -> float:
    """The smallest noise multiplier z whose ε after `rounds` rounds is within the target.

    A closed form where everyone takes part; else found by bisection to one part in 10,000, on the side that
    keeps the target.
    """
    _refuse_rounds(rounds)
    moved = (setting.intermediaries if target.unit == "hospital" else 1) * bounds_moved(target.neighbours)
    # Without amplification z follows from μ = √T·moved/z (Dong, Roth and Su 2022); with it less noise may do.
    enough = math.sqrt(rounds) * moved / gaussian_mu(target.epsilon, setting.delta)
    enough = enough if _within(target, setting, enough, rounds) else enough * (1 + 1e-9)
    if setting.sampling_rate >= 1 and setting.accountant in ("auto", "exact"):
        return enough
    while not _within(target, setting, enough, rounds):
        enough *= 1.5
    low = enough / 2
    while _within(target, setting, low, rounds):
        low, enough = low / 2, low
    while enough / low > 1 + 1e-4:
        middle = math.sqrt(low * enough)
        low, enough = (low, middle) if _within(target, setting, middle, rounds) else (middle, enough)
    return enough


def affordable_rounds(target: Target, setting: Setting, noise_multiplier: float) -> int:
    """How many rounds stay within the target, MOST_ROUNDS at most; 0 where one is already too much."""
    most = 1
    while most <= MOST_ROUNDS and _within(target, setting, noise_multiplier, most):
        most *= 2
    enough = most // 2  # so many stay within it; `most` do not, or are more than MOST_ROUNDS
    unsure = range(enough + 1, min(most, MOST_ROUNDS + 1))
    return enough + bisect_left(
        unsure, True, key=lambda rounds: not _within(target, setting, noise_multiplier, rounds)
    )


def _within(target: Target, setting: Setting, noise_multiplier: float, rounds: int) -> bool:
    events = setting.events(noise_multiplier, rounds)
    found = epsilon_bound(events, setting.delta, target.unit, target.neighbours, setting.accountant)
    return found.epsilon <= target.epsilon * (1 + 1e-9)


def _refuse_rounds(rounds: int) -> None:
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"rounds = {rounds}: choose 1 to {MOST_ROUNDS:,}")
