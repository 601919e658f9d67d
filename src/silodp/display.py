"""What a run looks like in a terminal: a line a round, a table at the end; hospital before intermediary."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAVY
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from silodp.audit import Audit
    from silodp.privacy.accountants import Epsilon, Figure
    from silodp.privacy.events import Neighbours, Unit
    from silodp.statement import Statement
    from silodp.training import Result

screen = Console(stderr=True)
"""Progress and notes; results go to standard output."""


@contextmanager
def progress(title: str, rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar on a terminal, plain lines elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    bar, state = Progress(*columns, console=screen), Text("preparing the data")
    task = bar.add_task(title, total=rounds)
    # The state has a line of its own: with both ε it is too long to stand beside the bar.
    with Live(Group(bar, state), console=screen) if screen.is_terminal else nullcontext():

        def on_round(record: dict[str, Any]) -> None:
            state.plain = describe_round(record)
            bar.update(task, completed=record["round"])
            if not screen.is_terminal:
                print(f"{title}: round {record['round']}/{rounds}  {state}", file=sys.stderr, flush=True)

        yield on_round


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that counts up."""
    with stages() as on_progress:
        yield lambda done, total: on_progress(what, done, total)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar a stage; a line every tenth of it where there is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=screen)
    tasks: dict[str, TaskID] = {}
    with bar if screen.is_terminal else nullcontext():

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)
            if not screen.is_terminal and done * 10 // total > (done - 1) * 10 // total:
                print(f"{stage}: {done}/{total}", file=sys.stderr, flush=True)

        yield on_progress


def describe_round(record: Mapping[str, Any]) -> str:
    """Metric, v, C and both ε of one line of metrics.jsonl."""
    metric, value = next(iter(record["validation"]["mean"].items()))
    epsilon = record["epsilon"]
    hospital, intermediary = show_epsilon(epsilon["hospital"]), show_epsilon(epsilon["intermediary"])
    parts = [
        f"{metric} {value:.3f}",
        f"v {record['intermediaries']}" + (" (capped)" if record["intermediaries_capped"] else ""),
        *([f"C {record['clip_bound']:.3g}"] if record["clip_bound"] < math.inf else []),
        f"ε hospital {hospital}, intermediary {intermediary}",
    ]
    if not epsilon["covers_everything"]:
        parts.append("(not all covered)")
    return "  ".join(parts)


def show_epsilon(value: float) -> str:
    """An ε as people read it; infinity is no privacy at all."""
    return "∞" if value == float("inf") else f"{value:,.1f}"


def show_result(result: Result) -> None:
    """The end of a run."""
    summary, epsilon = result.summary, result.epsilon
    table = Table(
        title=f"{summary['experiment']}: test, mean over hospitals", title_justify="left", box=SIMPLE_HEAVY
    )
    table.add_column("model")
    for metric in result.test:
        table.add_column(metric, justify="right")
    for which in ("last", "best"):
        test = summary["test"][which]
        table.add_row(
            f"{which} round ({test['round']})", *(f"{value:.3f}" for value in test["mean"].values())
        )
    console = Console()
    console.print(table)
    if summary["stopped"]:
        console.print(f"the budget ended the run: {summary['stopped']}", highlight=False)
    console.print(describe_epsilon(epsilon, summary), highlight=False)
    console.print("not covered by ε: " + "; ".join(summary["not_covered_by_epsilon"]), highlight=False)
    console.print(f"run folder: {result.folder}", soft_wrap=True, highlight=False)


def describe_epsilon(epsilon: Epsilon, summary: Mapping[str, Any]) -> str:
    """Both units and both neighbours in a sentence, hospital first."""
    swap = epsilon.replace_one
    text = (
        f"ε for a hospital {show_epsilon(epsilon.hospital)}, for an intermediary "
        f"{show_epsilon(epsilon.intermediary)} (add-or-remove neighbours; replace-one: "
        f"{show_epsilon(swap.hospital)} and {show_epsilon(swap.intermediary)}); "
        f"δ {summary['delta']:g}, v {summary['intermediaries']}, accountant: {epsilon.accountant}"
    )
    if epsilon.image is not None:
        text += f"; for an image {show_epsilon(epsilon.image)} at δ {summary['image_delta']:g}"
    return text


def show_comparison(results: Mapping[str, Result]) -> None:
    """Several runs side by side: test metrics of the last round's model, v, and ε for both units."""
    first = next(iter(results.values())).summary
    table = Table(
        title=f"test after {first['rounds']} rounds, mean over hospitals; ε at δ = {first['delta']:g}",
        caption="A smaller ε is more private. Splitting buys accuracy by protecting an intermediary; "
        "the hospital as a whole is protected far less.",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAVY,
    )
    table.add_column("run", no_wrap=True)
    for heading in (*next(iter(results.values())).test, "v", "ε for a\nhospital", "ε for an\nintermediary"):
        table.add_column(heading, justify="right")
    for title, result in results.items():
        table.add_row(
            title,
            *(f"{value:.3f}" for value in result.test.values()),
            str(result.summary["intermediaries"]),
            show_epsilon(result.epsilon.hospital),
            show_epsilon(result.epsilon.intermediary),
        )
    console = Console()
    console.print(table)
    for title, result in results.items():
        console.print(f"{title}: {result.folder}", soft_wrap=True, highlight=False)


def show_figures(
    title: str, figures: Mapping[tuple[Unit, Neighbours], Figure], multipliers: Mapping[Unit, str]
) -> None:
    """ε by unit and neighbouring relation, hospital first, with the accountant that answered."""
    table = Table(
        title=title,
        caption="Smaller is more private. Add-or-remove: the unit takes part or not; replace-one: it is "
        "exchanged for another.",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAVY,
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
    console = Console()
    console.print(table)
    for remark in dict.fromkeys(figure.remark for figure in figures.values() if figure.remark):
        console.print(f"[dim]{remark}[/dim]", highlight=False)


def show_statement(statement: Statement) -> None:
    """The privacy of a run for a person who has to answer for it."""
    experiment, console = statement.experiment, Console()
    fewest, most = statement.intermediaries
    lowest, highest = statement.hospital_multipliers
    parts = str(fewest) if fewest == most else f"{fewest}–{most}"
    show_figures(
        f"{experiment.name}: {statement.rounds} of {experiment.rounds} rounds, "
        f"{experiment.cohort.hospitals} hospitals, v {parts}, δ {statement.delta:g}",
        statement.figures,
        {
            "hospital": f"{lowest:.4g}" if highest < lowest * 1.001 else f"{lowest:.3g}–{highest:.3g}",
            "intermediary": f"{experiment.privacy.noise_multiplier:.4g}" if statement.image is None else "",
        },
    )
    if statement.image is not None:
        console.print(
            f"one image: ε {show_epsilon(statement.image)} at δ {experiment.privacy.image_delta:g} "
            f"(add-or-remove), noise multiplier {experiment.privacy.noise_multiplier:g} a step",
            highlight=False,
        )
    limit = experiment.budget
    if statement.by_round:
        console.print(
            chart(statement.by_round, (limit.epsilon, limit.unit) if limit else None), highlight=False
        )
    if limit is not None:
        spent = statement.figures[limit.unit, limit.neighbours].epsilon
        console.print(
            f"budget: ε {limit.epsilon:,g} for one {limit.unit} ({limit.neighbours}, δ {limit.delta:g}); "
            f"spent {show_epsilon(spent)}",
            highlight=False,
        )
    if statement.unprotected:
        console.print(
            "[bold]not covered by any ε[/bold]: "
            + ", ".join(statement.unprotected)
            + " (used without noise)",
            highlight=False,
        )
    if statement.redone:
        rounds = ", ".join(map(str, statement.redone))
        console.print(f"released again with other noise after a crash, and counted again: round {rounds}")
    if statement.torn:
        console.print("the ledger's last line is torn (a crash, or a run at work); it is left out")
    if statement.problems:
        console.print("[bold]the ledger is not in order[/bold]:", highlight=False)
        for problem in statement.problems:
            console.print(f"  {problem}", highlight=False)
    else:
        console.print(
            f"ledger: {statement.releases} releases, hash chain intact, in order, none missing",
            highlight=False,
        )


def show_audit(found: Audit) -> None:
    """Three claims, and what an observer could show of each."""
    settings = found.settings
    table = Table(
        title=f"audit: {settings.runs} federations of each kind, {settings.hospitals} hospitals, z "
        f"{settings.noise_multiplier:g}, v {settings.intermediaries}, {settings.rounds} rounds, "
        f"{found.parameters} parameters, δ {found.delta:g}",
        caption=f"«Shown» is below the true ε with {settings.confidence:.0%} confidence, by an observer's "
        f"hits and false alarms. So many federations can show {found.hospital.bound.most:.2f} at most: "
        "larger claims are not testable. The last line reads the intermediary's ε as the hospital's.",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAVY,
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
            finding.verdict if finding.testable else "not testable",
        )
    Console().print(table)


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
