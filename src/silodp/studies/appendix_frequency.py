"""Appendix: three times as many aggregations of the same local work."""

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
from silodp.tables import markdown_table

FACTOR = 3
TITLE = "Three times as many aggregations of the same local work"


def rows(plan: Plan) -> tuple[Row, Row, Row]:
    often = Row(
        "DP-FedAvg, three times as often",
        False,
        "often",
        {"rounds": FACTOR * plan.base.rounds, "local.epochs": plan.base.local.epochs / FACTOR},
        ("communication_x3", "DP-FedAvg"),
    )
    return WITHOUT_SPLITTING, often, WITH_SPLITTING


def cells(plan: Plan) -> list[Cell]:
    return cells_of(plan, rows(plan))


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    without, often, with_ = rows(plan)
    sentences = [
        compare(plan, found, often, without),
        compare(plan, found, with_, often),
        cost(plan, found, often, without),
        local_work(plan, found),
    ]
    write_table(out, plan, found, rows(plan), TITLE, sentences)


def local_work(plan: Plan, found: Sequence[Found]) -> str:
    """Optimizer steps of each hospital over the whole run: a round takes whole ones, at least one."""
    from silodp.local.steps import planned_steps

    usual, short = (
        plan.base.local,
        plan.base.local.model_copy(update={"epochs": plan.base.local.epochs / FACTOR}),
    )
    lines, changed = [], []
    for name, images in list(found[0].training_images.items())[: found[0].summary["members"]]:
        before = plan.base.rounds * planned_steps(images, usual)
        after = FACTOR * plan.base.rounds * planned_steps(images, short)
        lines.append([name, f"{images:,}", f"{before:,}", f"{after:,}", f"{after / before - 1:+.0%}"])
        changed += [name] * (after != before)
    table = markdown_table(["hospital", "images", "local steps", "three times as often", "change"], lines)
    sentence = (
        f"Rounds take whole local steps, at least one, so the local work differs in {len(changed)} of "
        f"{len(lines)} hospitals."
        if changed
        else "Every hospital does the same number of local steps in both."
    )
    return f"{sentence}\n\n{table}"


FREQUENCY = Study(
    "appendix-frequency", f"Appendix: {TITLE[0].lower()}{TITLE[1:]}", "prostate", cells, write, runs=9
)
