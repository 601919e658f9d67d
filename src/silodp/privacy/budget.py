"""The budget check: a round that would overspend does not start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from silodp.privacy.accountants import figure
from silodp.privacy.events import Event, Neighbours, Unit
from silodp.privacy.gaussian import gaussian_mu


@dataclass(frozen=True)
class Budget:
    """The most ε that a run may spend, at a δ, for a unit and a neighbouring relation."""

    epsilon: float
    delta: float
    unit: Unit
    neighbours: Neighbours

    def cost(self, events: Sequence[Event]) -> float:
        """ε of these events together."""
        return figure(events, self.delta, self.unit, self.neighbours).epsilon

    def noise_factor(self, events: Sequence[Event], rounds: int) -> float:
        """How many times the noise `rounds` such rounds need to stay within the budget, if all take part."""
        of_hospital, doubled = self.unit == "hospital", self.neighbours == "replace-one"
        squares = sum((event.hospital_mu if of_hospital else event.part_mu) ** 2 for event in events)
        return (1 + doubled) * math.sqrt(rounds * squares) / gaussian_mu(self.epsilon, self.delta)

    def refusal(self, before: Sequence[Event], planned: Sequence[Event], number: int) -> str | None:
        """Why round `number` may not release `planned` after `before`; None where it may."""
        epsilon = self.cost([*before, *planned])
        if epsilon <= self.epsilon:
            return None
        return (
            f"round {number} would bring ε for one {self.unit} to {epsilon:,.1f}, over the budget of "
            f"{self.epsilon:,g} ({self.neighbours} neighbours, δ {self.delta:g})"
        )
