"""Appendix: three times as many rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from silodp.studies.appendix_table import (
    WITH_SPLITTING,
    WITHOUT_SPLITTING,
    Row,
    cells_of,
    compare,
    cost,
    write_table,
)
from silodp.studies.study import Cell, Found, Plan, Study

FACTOR = 3
TITLE = "Three times as many rounds"


def rows(plan: Plan) -> tuple[Row, Row, Row, Row]:
    rounds = FACTOR * plan.base.rounds
    longer: dict[str, Any] = {"variant": f"rounds{rounds}", "changes": {"rounds": rounds}}
    return (
        WITHOUT_SPLITTING,
        WITH_SPLITTING,
        Row("DP-FedAvg, three times the rounds", False, printed=("rounds_300", "DP-FedAvg"), **longer),
        Row(
            "DP-FedAvg + intermediaries, three times the rounds",
            True,
            printed=("rounds_300", "DP-FedAvg+intermediary"),
            **longer,
        ),
    )


def cells(plan: Plan) -> list[Cell]:
    return cells_of(plan, rows(plan))


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    without, with_, longer_without, longer_with = rows(plan)
    sentences = [
        compare(plan, found, longer_without, without),
        compare(plan, found, longer_with, with_),
        compare(plan, found, longer_with, longer_without),
        cost(plan, found, longer_without, without),
        cost(plan, found, longer_with, with_),
        f"The paper's rounds are 100 and 300, here {plan.base.rounds} and {FACTOR * plan.base.rounds}; "
        "it prints no ε for the longer runs.",
    ]
    write_table(out, plan, found, rows(plan), TITLE, sentences)


ROUNDS = Study(
    "appendix-rounds", f"Appendix: {TITLE[0].lower()}{TITLE[1:]}", "prostate", cells, write, runs=12
)
