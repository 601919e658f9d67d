"""The budget alone: what it counts, and what it says. That no round overspends is in test_federation.py."""

import math

import pytest

from silodp.privacy.budget import Budget
from silodp.privacy.events import Event, Neighbours, Unit
from silodp.privacy.gaussian import gaussian_epsilon

CELLS: list[tuple[Unit, Neighbours, int]] = [
    ("hospital", "add-or-remove", 3),
    ("hospital", "replace-one", 6),
    ("intermediary", "add-or-remove", 1),
    ("intermediary", "replace-one", 2),
]


def rounds(count: int, first: int = 1) -> list[Event]:
    return [Event(first + t, "model update", True, 2.0, 3, 1.0, "all", 1.0) for t in range(count)]


@pytest.mark.parametrize(("unit", "neighbours", "moved"), CELLS)
def test_cost_is_the_exact_figure_of_its_cell(unit: Unit, neighbours: Neighbours, moved: int) -> None:
    budget = Budget(1.0, 0.01, unit, neighbours)
    assert budget.cost(rounds(5)) == pytest.approx(gaussian_epsilon(math.sqrt(5) * moved / 2, 0.01), rel=1e-6)


@pytest.mark.parametrize(("unit", "neighbours", "moved"), CELLS)
def test_so_much_more_noise_makes_all_rounds_fit_exactly(
    unit: Unit, neighbours: Neighbours, moved: int
) -> None:
    budget = Budget(2.5, 0.01, unit, neighbours)
    noise = 2.0 * budget.noise_factor(rounds(1), 40)
    assert gaussian_epsilon(math.sqrt(40) * moved / noise, 0.01) == pytest.approx(2.5, rel=1e-6)


def test_a_round_fits_or_the_refusal_names_everything() -> None:
    cost = gaussian_epsilon(math.sqrt(5) * 3 / 2, 0.01)
    enough, less = (Budget(cost * part, 0.01, "hospital", "add-or-remove") for part in (1 + 1e-9, 0.999))
    assert enough.refusal(rounds(4), rounds(1, 5), 5) is None
    said = less.refusal(rounds(4), rounds(1, 5), 5)
    assert said is not None
    for part in ("round 5", "one hospital", f"{cost:,.1f}", "over the budget of", "add-or-remove", "δ 0.01"):
        assert part in said


def test_unprotected_events_cost_nothing_that_could_be_counted() -> None:
    unprotected = Event(1, "median norm", False, 0.0, 3, 1.0, "all", 1.0)
    budget = Budget(10.0, 0.01, "hospital", "add-or-remove")
    assert budget.cost([*rounds(1), unprotected]) == budget.cost(rounds(1))
