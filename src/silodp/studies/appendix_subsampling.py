"""Appendix: DP-FedAvg with two thirds of the hospitals in each round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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

TITLE = "Two thirds of the hospitals in each round"

_SAMPLED = Row(
    "DP-FedAvg, 2/3 of the hospitals",
    False,
    "two-thirds",
    {"participation.rule": "fraction", "participation.rate": 2 / 3},
    ("subsampling_two_thirds", "DP-FedAvg (subsample)"),
)
ROWS = (WITHOUT_SPLITTING, _SAMPLED, WITH_SPLITTING)


def cells(plan: Plan) -> list[Cell]:
    return cells_of(plan, ROWS)


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    sentences = [
        compare(plan, found, _SAMPLED, WITHOUT_SPLITTING),
        compare(plan, found, WITH_SPLITTING, _SAMPLED),
        cost(plan, found, _SAMPLED, WITHOUT_SPLITTING),
        accountants(plan, found),
    ]
    write_table(out, plan, found, ROWS, TITLE, sentences)


def accountants(plan: Plan, found: Sequence[Found]) -> str:
    """Who computed ε with sampling."""
    spent = [one.summary["epsilon"] for z in plan.noise for one in _SAMPLED.of(found, z)]
    names = sorted({epsilon["accountant"] for epsilon in spent})
    amplified = any(epsilon["amplified"] for epsilon in spent)
    return (
        f"ε with sampling comes from «{'», «'.join(names) or 'nobody'}»: "
        + (
            "it counts on nobody's knowing who took part"
            if amplified
            else "an observer may know who took part"
        )
        + ". The paper prints no ε with sampling. A round's mean is of fewer hospitals: its noise is larger."
    )


SUBSAMPLING = Study(
    "appendix-subsampling", f"Appendix: {TITLE[0].lower()}{TITLE[1:]}", "prostate", cells, write, runs=9
)
