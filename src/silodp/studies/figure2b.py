"""Figure 2(b): how unlike the updates are in their direction, without and with intermediaries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from silodp.studies.output import (
    PAIRED,
    pair,
    paired_privacy,
    run_rows,
    write_figure,
    write_markdown,
)
from silodp.studies.over_rounds import (
    UNNOISED,
    Groups,
    draw_distributions,
    fedavg_cells,
    finish,
    grouped,
    grows,
    in_words,
    listed,
    medians,
    middle_half,
    need_diagnostics,
    round_rows,
)
from silodp.studies.study import Cell, Found, Plan, Study
from silodp.tables import markdown_table, write_csv


def cells(plan: Plan) -> list[Cell]:
    need_diagnostics(plan, "figure2b")
    return fedavg_cells(plan)


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    rows = round_rows(found, "cosine_std")
    groups = grouped(rows, "cosine_std")
    write_csv(out / "results.csv", run_rows(found))
    write_csv(out / "rounds.csv", rows)
    explanation = (
        "In each round the cosine between every update and the aggregate (the sum of the clipped updates, "
        "before the noise), and the standard deviation of these cosines: over the N hospitals without, over "
        "the N·v intermediaries with the method. The round that only measures (its update is not applied) "
        "is left out."
    )
    parts = [explanation, _table(plan, found, groups), _reading(groups), in_words("b"), UNNOISED]
    write_markdown(out, "Figure 2(b), prostate: spread of the updates' directions", plan, found, parts)
    figure, axes = draw_distributions(plan, groups, "std of cosine(update, aggregate)\n(lower: more alike)")
    axes.set_ylim(bottom=0)
    finish(
        figure,
        axes,
        "How unlike the updates of one round are in direction; a point a round, median beside the box",
    )
    write_figure(out, "figure2b", figure)


def _table(plan: Plan, found: Sequence[Found], groups: Groups) -> str:
    header = ["z", *PAIRED]
    header += ["std of cosines without: median (middle half)", "with", "with − without"]
    without_, with__ = medians(groups, "without"), medians(groups, "with")
    rows = []
    for z in plan.noise:
        without, with_ = pair(found, z=z)
        if without or with_:
            known = z in without_ and z in with__
            rows.append(
                [
                    f"{z:g}",
                    *paired_privacy(without, with_),
                    middle_half(groups.get((z, "without")), 3),
                    middle_half(groups.get((z, "with")), 3),
                    f"{with__[z] - without_[z]:+.3f}" if known else "–",
                ]
            )
    return markdown_table(header, rows)


def _reading(groups: Groups) -> str:
    """The paper's two claims, each held against the medians."""
    without, with_ = medians(groups, "without"), medians(groups, "with")
    both = [z for z in without if z in with_]
    smaller = [z for z in both if with_[z] < without[z]]
    sentences = []
    if both:
        where = ", ".join(f"{z:g}" for z in both if z not in smaller)
        sentences.append(
            "The paper's first claim, a smaller spread with intermediaries, "
            + (
                f"holds at every z ({len(both)} of {len(both)})."
                if len(smaller) == len(both)
                else f"does not hold at z = {where} ({len(smaller)} of {len(both)} z have it)."
            )
        )
    if len(without) > 1:
        falls = grows([-value for value in without.values()])
        sentences.append(
            "The second, a spread that falls with z for DP-FedAvg without intermediaries, "
            f"{'holds' if falls else 'does not hold'}: {listed(without, 3)}."
        )
    elif without:
        sentences.append("The second, a spread that falls with z for DP-FedAvg, needs more than one z.")
    return " ".join(sentences) or "No round has cosines."


STUDY = Study(
    "figure2b", "Figure 2(b): spread of the updates' directions over rounds", "prostate", cells, write, runs=6
)
