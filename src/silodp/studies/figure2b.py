"""Figure 2(b): how much the directions of updates differ, without and with intermediaries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from silodp.studies.claims import everywhere, rising
from silodp.studies.output import Results
from silodp.studies.over_rounds import (
    UNNOISED,
    distribution_table,
    distributions,
    fedavg_cells,
    grouped,
    medians,
    paper_shows,
    round_rows,
)
from silodp.studies.study import CellRun, Plan, Study

_EXPLANATION = (
    "In each round the cosine between every update and the aggregate (the sum of the clipped updates, "
    "before the noise), and the standard deviation of these cosines: over the N hospitals without, over "
    "the N·v intermediaries with the method. The round that only measures (its update is not applied) "
    "is left out."
)


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    rows = round_rows(found, "cosine_std")
    groups = grouped(rows, "cosine_std")
    without, with_ = medians(groups, "without"), medians(groups, "with")
    smaller = {z: without[z] - with_[z] for z in without if z in with_}
    change = (("with − without", lambda pair: f"{-smaller[pair.key]:+.3f}" if pair.key in smaller else "–"),)
    return Results(
        "Figure 2(b), prostate: spread of the updates' directions",
        found,
        [_EXPLANATION, distribution_table(found, groups, "std of cosines", 3, after=change)],
        [
            everywhere(
                "The spread is smaller with intermediaries (without − with)",
                {f"z = {z:g}": gain for z, gain in smaller.items()},
            ),
            rising("Without intermediaries the spread falls with z", without, 3, falling=True),
        ],
        [paper_shows("b"), UNNOISED],
        {
            "figure2b": distributions(
                plan,
                groups,
                "std of cosine(update, aggregate)\n(lower: more alike)",
                "How much the updates of one round differ in direction",
            )
        },
        {"rounds.csv": rows},
    )


STUDY = Study(
    "figure2b",
    "Figure 2(b): spread of the updates' directions over rounds",
    "prostate",
    partial(fedavg_cells, shows="figure2b"),
    results,
    runs=6,
)
