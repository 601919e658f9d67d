"""Figure 2(a): the ratio λ of noise to diversity over rounds, without and with intermediaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from silodp.studies.claims import Claim, listed, rising
from silodp.studies.columns import Pair
from silodp.studies.output import Results
from silodp.studies.over_rounds import (
    UNNOISED,
    Groups,
    distribution_table,
    distributions,
    expected_v,
    fedavg_cells,
    grouped,
    hospitals_a_round,
    medians,
    paper_shows,
    round_rows,
    uncapped,
)
from silodp.studies.pictures import Level
from silodp.studies.study import CellRun, Plan, Study

NEAR = 1.5
"""A median of N·λ within this factor of its target 1 counts as on target: v is rounded down."""

_EXPLANATION = (
    "N·λ in each round, where N is the number of hospitals: the method steers λ to 1/N, so N·λ to 1, by "
    "v ← v·√(N·λ). With intermediaries the first round only measures (its update is not applied) and is "
    "left out. Expected is N·λ = z√d/(N·v²), the norm of the noise over N·v updates of norm C, which "
    "needs no data."
)


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    rows = _rows(found)
    groups = grouped(rows, "n_lambda")

    def without_splitting(pair: Pair) -> str:
        return f"{expected_v((pair.without or pair.with_)[0]) ** 2:.2f}"

    expected = (("expected without", without_splitting),)
    return Results(
        "Figure 2(a), prostate: the ratio λ over rounds",
        found,
        [_EXPLANATION, distribution_table(found, groups, "N·λ", before=expected)],
        [*_claims(groups), uncapped(rows)],
        [paper_shows("a"), UNNOISED],
        {
            "figure2a": distributions(
                plan,
                groups,
                "N·λ, noise over updates (log scale)",
                "How much noise a round adds for the updates it gets",
                target=Level(1, "target: λ = 1/N"),
            )
        },
        {"rounds.csv": rows},
    )


def _rows(found: Sequence[CellRun]) -> list[dict[str, Any]]:
    """rounds.csv, with N·λ."""
    return [
        {**row, "n_lambda": None if row["lambda"] is None else hospitals_a_round(one) * row["lambda"]}
        for one in found
        for row in round_rows([one], "lambda")
    ]


def _claims(groups: Groups) -> list[Claim]:
    without, with_ = medians(groups, "without"), medians(groups, "with")
    away = max((max(value, 1 / value) for value in with_.values()), default=1.0)
    ratios = _most_over_least(without), _most_over_least(with_)
    several = len(without) > 1 and len(with_) > 1
    return [
        rising("Without intermediaries the median of N·λ grows with z", without),
        Claim(
            f"With intermediaries every median of N·λ is within a factor of {NEAR:g} of its target 1",
            away <= NEAR if with_ else None,
            f"at most {away:.2f}: {listed(with_)}" if with_ else "",
        ),
        Claim(
            "With intermediaries the medians differ less over z",
            ratios[1] < ratios[0] if several else None,
            f"the largest is {ratios[0]:.2f} times the smallest without, {ratios[1]:.2f} with" * several,
        ),
    ]


def _most_over_least(values: Mapping[float, float]) -> float:
    return max(values.values()) / min(values.values()) if values else math.nan


STUDY = Study(
    "figure2a",
    "Figure 2(a): the ratio λ over rounds, with and without intermediaries",
    "prostate",
    partial(fedavg_cells, shows="figure2a"),
    results,
    runs=6,
)
