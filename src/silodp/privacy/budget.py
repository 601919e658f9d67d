"""The budget check: a round that would overspend does not start.

It needs only the events that the round would release: they follow from the plan, before anybody trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from silodp.privacy.accountants import epsilon_bound
from silodp.privacy.events import Event, Neighbours, Unit
from silodp.privacy.gaussian import gaussian_mu


@dataclass(frozen=True)
class Budget:
    """The most ε that a run may spend.

    Attributes:
        epsilon: the limit, which a run may reach but not exceed.
        delta: at which ε is counted, between 0 and 1.
        unit: whom it protects: a hospital, or one of the intermediaries that hospitals are split into.
        neighbours: for which relation; replace-one costs what add-or-remove costs with half the noise.
    """

    epsilon: float
    delta: float
    unit: Unit
    neighbours: Neighbours

    def cost(self, events: Sequence[Event]) -> float:
        """ε of these events together, by the tightest accountant proved for them."""
        return epsilon_bound(events, self.delta, self.unit, self.neighbours).epsilon

    def noise_factor(self, events: Sequence[Event], rounds: int) -> float:
        """How many times the noise `rounds` such rounds need to stay within the budget, if all take part.

        Args:
            events: the releases of one round, with the noise that is to be scaled.
            rounds: how many such rounds.

        Returns:
            √(rounds · Σμ²)/μ*, doubled for replace-one, where μ* is the μ of a Gaussian release that costs
            the budget. Exact without amplification; with it less noise would do.
        """
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
