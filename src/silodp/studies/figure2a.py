"""Figure 2(a): the ratio λ of noise to diversity over rounds, without and with intermediaries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from silodp.intermediary import closed_form
from silodp.studies.output import PAIRED, pair, paired_privacy, run_rows, write_figure, write_markdown
from silodp.studies.over_rounds import (
    UNNOISED,
    Groups,
    draw_distributions,
    fedavg_cells,
    finish,
    grouped,
    grows,
    hospitals_a_round,
    in_words,
    listed,
    medians,
    middle_half,
    most_over_least,
    need_diagnostics,
    round_rows,
)
from silodp.studies.study import Cell, Found, Plan, Study
from silodp.tables import markdown_table, write_csv

NEAR = 1.5
"""A median of N·λ within this factor of its target 1 counts as centred: v is a whole number, rounded down."""


def cells(plan: Plan) -> list[Cell]:
    need_diagnostics(plan, "figure2a")
    return fedavg_cells(plan)


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    rows = ratio_rows(found)
    groups = grouped(rows, "n_lambda")
    write_csv(out / "results.csv", run_rows(found))
    write_csv(out / "rounds.csv", rows)
    explanation = (
        "N·λ in each round, N the number of hospitals: the method steers λ to 1/N, which is N·λ = 1, by "
        "v ← v·√(N·λ). With intermediaries the first round only measures (its update is not applied) and is "
        "left out. Expected is N·λ = z√d/(N·v²), which needs no data: the norm of the noise over N·v updates "
        "of norm C."
    )
    parts = [
        explanation,
        _table(plan, found, groups),
        _reading(groups),
        *_capped(rows),
        in_words("a"),
        UNNOISED,
    ]
    write_markdown(out, "Figure 2(a), prostate: the ratio λ over rounds", plan, found, parts)
    _picture(out, plan, groups)


def ratio_rows(found: Sequence[Found]) -> list[dict[str, Any]]:
    """rounds.csv, with N·λ."""
    return [
        {**row, "n_lambda": None if row["lambda"] is None else hospitals_a_round(one) * row["lambda"]}
        for one in found
        for row in round_rows([one], "lambda")
    ]


def _table(plan: Plan, found: Sequence[Found], groups: Groups) -> str:
    header = ["z", *PAIRED]
    header += ["expected without", "N·λ without: median (middle half)", "with"]
    rows = []
    for z in plan.noise:
        without, with_ = pair(found, z=z)
        if not (without or with_):
            continue
        one = (without or with_)[0]
        expected = closed_form(z, one.summary["parameters"], hospitals_a_round(one)) ** 2
        rows.append(
            [
                f"{z:g}",
                *paired_privacy(without, with_),
                f"{expected:.2f}",
                middle_half(groups.get((z, "without"))),
                middle_half(groups.get((z, "with"))),
            ]
        )
    return markdown_table(header, rows)


def _reading(groups: Groups) -> str:
    """Whether λ grows with z without the method, and stays at its target with it."""
    without, with_ = medians(groups, "without"), medians(groups, "with")
    sentences = []
    if len(without) > 1:
        does = "grows" if grows(list(without.values())) else "does not grow"
        verdict = "as" if does == "grows" else "unlike"
        sentences.append(
            f"Without intermediaries the median of N·λ {does} with z, {verdict} in the paper: "
            f"{listed(without)}."
        )
    elif without:
        sentences.append(
            f"Without intermediaries the median of N·λ is {listed(without)}; one z shows no trend."
        )
    if with_:
        away = max(max(value, 1 / value) if value > 0 else float("inf") for value in with_.values())
        kept = (
            f"keeps λ centred near 1/N, as in the paper: every median of N·λ is within a factor of {NEAR:g}"
        )
        lost = f"does not keep λ near 1/N: a median of N·λ is more than a factor of {NEAR:g} from"
        sentences.append(
            f"With intermediaries the method {kept if away <= NEAR else lost} "
            f"{'of ' if away <= NEAR else ''}its target 1 (at most {away:.2f}): {listed(with_)}."
        )
    if len(without) > 1 and len(with_) > 1:
        sentences.append(
            f"Over z the largest median is {most_over_least(without):.2f} times the smallest without and "
            f"{most_over_least(with_):.2f} times with intermediaries."
        )
    return " ".join(sentences) or "No round has a ratio."


def _capped(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where the rule could not have its way."""
    with_ = [row for row in rows if row["intermediaries"] == "with" and row["applied"]]
    if not (capped := sum(row["v_capped"] for row in with_)):
        return []
    return [
        f"In {capped} of {len(with_)} rounds with intermediaries the smallest hospital has no images for as "
        "many as the rule asks for: there λ cannot come down to its target."
    ]


def _picture(out: Path, plan: Plan, groups: Groups) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = draw_distributions(plan, groups, "N·λ, noise over updates (log scale)")
    axes.set_yscale("log")
    axes.axhline(1, color="#555555", linewidth=1, linestyle="--", label="target: λ = 1/N")
    axes.set_ylim(bottom=min([0.8, *(0.9 * value for values in groups.values() for value in values)]))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    finish(
        figure,
        axes,
        "How much noise a round adds for the updates it gets; a point a round, median beside the box",
    )
    write_figure(out, "figure2a", figure)


STUDY = Study(
    "figure2a",
    "Figure 2(a): the ratio λ over rounds, with and without intermediaries",
    "prostate",
    cells,
    write,
    runs=6,
)
