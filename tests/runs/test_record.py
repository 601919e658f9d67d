"""What ε does not cover is listed beside it."""

from typing import Any

import pytest

from silodp import Experiment
from silodp.mechanism import Mechanism
from silodp.runs.record import epsilon_of, epsilon_record, not_covered


def notes(changes: dict[str, Any]) -> list[str]:
    """Of a run of six hospitals, after one round."""
    experiment = Experiment(**{"intermediaries": {"rule": "fixed"}} | changes).resolve(6, 1)
    events = Mechanism.of(experiment, [20] * 6).events(1, 1, None, False)
    return not_covered(experiment, epsilon_record(epsilon_of(experiment, events)), None)


def drawn(rule: str, state: str = "fresh") -> dict[str, Any]:
    return {"participation": {"rule": rule, "rate": 1 / 3}, "local": {"state": state}}


@pytest.mark.parametrize(
    ("note", "changes", "without"),
    [
        ("readers who know which hospitals took part when", drawn("poisson"), {}),
        ("readers who know which hospitals took part when", drawn("poisson"), drawn("fraction", "kept")),
        ("a hospital that stays away", {"privacy": {"level": "sample"}}, {}),
        ("xi, phi, lambda, cosine_std and train_loss", {"diagnostics": True}, {"diagnostics": False}),
        ("readers who know the seed", {}, {"privacy": {"entropy": "system"}}),
    ],
)
def test_what_epsilon_does_not_cover_is_said_where_it_is_so_and_nowhere_else(
    note: str, changes: dict[str, Any], without: dict[str, Any]
) -> None:
    assert sum(one.startswith(note) for one in notes(changes)) == 1
    assert not any(one.startswith(note) for one in notes(without))
