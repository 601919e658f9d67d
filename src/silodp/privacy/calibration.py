"""The other way round: the noise that a promised ε needs, and the rounds that a budget affords."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from silodp.errors import InputError
from silodp.privacy.accountants import Accountant, Figure, as_dict, figure, figures, refuse_delta
from silodp.privacy.events import Event, Neighbours, Participation, Unit, bounds_moved
from silodp.privacy.gaussian import gaussian_mu

MOST_ROUNDS = 100_000
MOST_EPSILON = 1e9


@dataclass(frozen=True)
class Setting:
    """A federation as an accountant sees it before it exists: the same v and the same noise every round."""

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
        """The releases of `rounds` rounds."""
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

    def figures(self, noise_multiplier: float, rounds: int) -> dict[tuple[Unit, Neighbours], Figure]:
        return figures(self.events(noise_multiplier, rounds), self.delta, self.accountant)


@dataclass(frozen=True)
class Target:
    """An ε that must hold for a unit and a neighbouring relation."""

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
    figures: dict[tuple[Unit, Neighbours], Figure]

    @property
    def noise_multipliers(self) -> dict[Unit, float]:
        hospital = self.noise_multiplier / self.setting.intermediaries
        return {"hospital": hospital, "intermediary": self.noise_multiplier}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """What noise and rounds cost; with a target the noise it needs, or with both the rounds it affords."""
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
    """The smallest noise multiplier z whose ε after `rounds` rounds is within the target."""
    _refuse_rounds(rounds)
    moved = (setting.intermediaries if target.unit == "hospital" else 1) * bounds_moved(target.neighbours)
    # Without amplification z follows from μ = √T·moved/z; with it less noise may do.
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
    low, high = most // 2, min(most, MOST_ROUNDS + 1)  # low holds (or is 0), high does not
    while high - low > 1:
        middle = (low + high) // 2
        if _within(target, setting, noise_multiplier, middle):
            low = middle
        else:
            high = middle
    return low


def _within(target: Target, setting: Setting, noise_multiplier: float, rounds: int) -> bool:
    events = setting.events(noise_multiplier, rounds)
    found = figure(events, setting.delta, target.unit, target.neighbours, setting.accountant)
    return found.epsilon <= target.epsilon * (1 + 1e-9)


def _refuse_rounds(rounds: int) -> None:
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"rounds = {rounds}: choose 1 to {MOST_ROUNDS:,}")
