"""Figure 2(b): how unlike the updates are in their direction, without and with intermediaries."""

from __future__ import annotations

from collections.abc import Sequence

from silodp.studies.claims import everywhere, rising
from silodp.studies.columns import PAIRED, pairs, table
from silodp.studies.output import Results
from silodp.studies.over_rounds import (
    UNNOISED,
    distributions,
    fedavg_cells,
    grouped,
    in_words,
    medians,
    middle_half,
    need_diagnostics,
    round_rows,
)
from silodp.studies.study import Cell, Found, Plan, Study

_EXPLANATION = (
    "In each round the cosine between every update and the aggregate (the sum of the clipped updates, "
    "before the noise), and the standard deviation of these cosines: over the N hospitals without, over "
    "the N·v intermediaries with the method. The round that only measures (its update is not applied) "
    "is left out."
)


def cells(plan: Plan) -> list[Cell]:
    need_diagnostics(plan, "figure2b")
    return fedavg_cells(plan)


def results(plan: Plan, found: Sequence[Found]) -> Results:
    rows = round_rows(found, "cosine_std")
    groups = grouped(rows, "cosine_std")
    without, with_ = medians(groups, "without"), medians(groups, "with")
    smaller = {z: without[z] - with_[z] for z in without if z in with_}
    columns = (
        ("z", lambda pair: f"{pair.key:g}"),
        *PAIRED,
        (
            "std of cosines without: median (middle half)",
            lambda pair: middle_half(groups.get((pair.key, "without")), 3),
        ),
        ("with", lambda pair: middle_half(groups.get((pair.key, "with")), 3)),
        ("with − without", lambda pair: f"{-smaller[pair.key]:+.3f}" if pair.key in smaller else "–"),
    )
    return Results(
        "Figure 2(b), prostate: spread of the updates' directions",
        found,
        [_EXPLANATION, table(pairs(found, lambda one: one.cell.columns["z"]), columns)],
        [
            everywhere(
                "The spread is smaller with intermediaries (without − with)",
                {f"z = {z:g}": gain for z, gain in smaller.items()},
            ),
            rising("Without intermediaries the spread falls with z", without, 3, falling=True),
        ],
        [in_words("b"), UNNOISED],
        {
            "figure2b": distributions(
                plan,
                groups,
                "std of cosine(update, aggregate)\n(lower: more alike)",
                "How unlike the updates of one round are in direction",
            )
        },
        {"rounds.csv": rows},
    )


STUDY = Study(
    "figure2b",
    "Figure 2(b): spread of the updates' directions over rounds",
    "prostate",
    cells,
    results,
    runs=6,
)
