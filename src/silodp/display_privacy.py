"""What ε looks like in a terminal: tables by unit and neighbours, ε over rounds, an audit's verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from silodp.display import show_epsilon, titled_table
from silodp.terminal import console as terminal

if TYPE_CHECKING:
    from silodp.audit import Audit
    from silodp.privacy.accountants import Figure
    from silodp.privacy.events import Neighbours, Unit
    from silodp.statement import Statement


def show_figures(
    title: str, figures: Mapping[tuple[Unit, Neighbours], Figure], multipliers: Mapping[Unit, str]
) -> None:
    """ε by unit and neighbouring relation, hospital first, with the accountant that answered."""
    table = titled_table(
        title,
        "Smaller is more private. Add-or-remove: the unit takes part or not; replace-one: it is "
        "exchanged for another.",
    )
    table.add_column("one …", no_wrap=True)
    for heading in ("noise\nmultiplier", "ε add-or-\nremove", "ε replace-\none"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("accountant")
    for unit, multiplier in multipliers.items():
        remove, swap = figures[unit, "add-or-remove"], figures[unit, "replace-one"]
        names = dict.fromkeys((remove.accountant, swap.accountant))
        table.add_row(
            unit, multiplier, show_epsilon(remove.epsilon), show_epsilon(swap.epsilon), " / ".join(names)
        )
    console = terminal()
    console.print(table)
    for remark in dict.fromkeys(figure.remark for figure in figures.values() if figure.remark):
        console.print(remark, style="dim")


def show_statement(statement: Statement) -> None:
    """The privacy of a run for a person who has to answer for it."""
    experiment, console = statement.experiment, terminal()
    fewest, most = statement.intermediaries
    lowest, highest = statement.hospital_multipliers
    parts = str(fewest) if fewest == most else f"{fewest}–{most}"
    hospitals, members = experiment.cohort.hospitals, experiment.members
    trained = f"{hospitals}" if members == hospitals else f"{members} of {hospitals}"
    show_figures(
        f"{experiment.name}: {statement.rounds} of {experiment.rounds} rounds, "
        f"{trained} {'simulated ' if experiment.cohort.simulated else ''}hospitals, "
        f"v {parts}, δ {statement.delta:g}",
        statement.figures,
        {
            "hospital": f"{lowest:.4g}" if highest <= lowest * 1.001 else f"{lowest:.3g}–{highest:.3g}",
            "intermediary": f"{experiment.privacy.noise_multiplier:.4g}" if statement.image is None else "",
        },
    )
    if statement.image is not None:
        console.print(
            f"one image: ε {show_epsilon(statement.image)} at δ {experiment.privacy.image_delta:g} "
            f"(add-or-remove), noise multiplier {experiment.privacy.noise_multiplier:g} a step",
        )
    limit = experiment.budget
    if statement.by_round:
        # The picture is of add-or-remove neighbours at the run's δ; another budget has no place in it.
        fits = limit and (limit.neighbours, limit.delta) == ("add-or-remove", statement.delta)
        line = (limit.epsilon, limit.unit) if limit and fits else None
        console.print(chart(statement.by_round, line))
    if limit is not None and statement.budget_spent is not None:
        console.print(
            f"budget: ε {limit.epsilon:,g} for one {limit.unit} ({limit.neighbours}, δ {limit.delta:g}); "
            f"spent {show_epsilon(statement.budget_spent)}",
        )
    if statement.unprotected:
        console.print(Text.assemble(("used without noise", "bold"), ": ", ", ".join(statement.unprotected)))
    console.print("not covered by ε: " + "; ".join(statement.not_covered))
    if statement.redone:
        rounds = ", ".join(map(str, statement.redone))
        console.print(f"released again with other noise after a crash, and counted again: round {rounds}")
    if statement.torn:
        console.print("the ledger's last line is torn (a crash, or a run at work); it is left out")
    if statement.problems:
        console.print("the ledger is not in order:", style="bold")
        for problem in statement.problems:
            console.print(f"  {problem}")
    else:
        console.print(
            f"ledger: {statement.releases} releases, hash chain intact, in order, none missing",
        )


def show_audit(found: Audit) -> None:
    """Three claims, and what an observer could show of each."""
    settings = found.settings
    table = titled_table(
        f"audit: {settings.runs} federations of each kind, {settings.hospitals} hospitals, z "
        f"{settings.noise_multiplier:g}, v {settings.intermediaries}, {settings.rounds} rounds, "
        f"{found.parameters} parameters, δ {found.delta:g}",
        f"«Shown» is below the true ε with {settings.confidence:.0%} confidence, by an observer's "
        f"hits and false alarms. So many federations can show {found.hospital.bound.most:.2f} at most: "
        "larger claims are untested. The last line reads the intermediary's ε as the hospital's.",
    )
    table.add_column("claim", no_wrap=True)
    for heading in ("claimed", "shown ≥", "hits", "alarms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for finding in found.findings:
        bound = finding.bound
        table.add_row(
            finding.claim,
            f"{finding.claimed:.2f}",
            f"{bound.epsilon:.2f}",
            f"{bound.true_positives}/{bound.with_canary}",
            f"{bound.false_positives}/{bound.without_canary}",
            finding.verdict,
        )
    terminal().print(table)


def chart(
    points: list[tuple[int, float, float]],
    budget: tuple[float, str] | None,
    width: int = 60,
    height: int = 10,
) -> str:
    """ε over rounds on a logarithmic scale: ● a hospital, ○ an intermediary, ┄ the budget."""
    values = [value for _, *pair in points for value in pair if 0 < value < float("inf")]
    if not values:
        return ""
    ceiling = max([*values, budget[0]] if budget else values)
    low, high = math.log10(min(values)), math.log10(ceiling)
    span = max(high - low, 1e-9)
    grid = [[" "] * width for _ in range(height)]

    def row(value: float) -> int:
        return height - 1 - round((math.log10(value) - low) / span * (height - 1))

    if budget and low <= math.log10(budget[0]):
        grid[row(budget[0])] = ["┄"] * width
    last = points[-1][0]
    for number, hospital, intermediary in points:
        column = min(width - 1, int((number - 1) / max(1, last - 1) * (width - 1)))
        for value, mark in ((intermediary, "○"), (hospital, "●")):  # the hospital's mark lies on top
            if 0 < value < float("inf"):
                grid[row(value)][column] = mark
    labels = {0: f"{10**high:,.1f}", height - 1: f"{10**low:,.1f}"}
    margin = max(map(len, labels.values()))
    lines = [f"{labels.get(index, ''):>{margin}} ┤{''.join(cells)}" for index, cells in enumerate(grid)]
    lines.append(f"{'':>{margin}} └{'─' * width}")
    lines.append(f"{'':>{margin}}  round 1{'':>{width - 7 - len(str(last))}}{last}")
    legend = "● ε for a hospital   ○ for an intermediary" + (f"   ┄ budget ({budget[1]})" if budget else "")
    lines.append(f"{'':>{margin}}  {legend}")
    return "\n".join(lines)
