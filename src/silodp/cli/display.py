"""A run in a terminal: progress bars and a line a round, a table at the end; hospital before intermediary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from silodp.cli.tables import make_table, numbers, print_table, uncut
from silodp.cli.terminal import console as terminal
from silodp.cli.terminal import say
from silodp.errors import printable
from silodp.runs.promise import summary_in_words
from silodp.runs.schema import TESTED, or_nan
from silodp.runs.wording import (
    describe_baseline,
    describe_cohort,
    describe_round,
    describe_test,
    show_epsilon,
    with_unit,
)

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead
    from silodp.runs.result import Result
    from silodp.runs.schema import RoundRecord
    from silodp.runs.training import OnRound

screen = terminal(stderr=True)
"""For progress and notes; results go to standard output."""


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=screen)


@contextmanager
def progress(title: str, rounds: int) -> Iterator[tuple[OnRound, OnRead]]:
    """Bars for the rounds of a run and for the files read before it; plain lines without a terminal."""
    bar, state = _bar(), Text("preparing the data")
    task = bar.add_task(title, total=rounds)
    # The state has its own line: with both ε it is too long to stand beside the bar.
    with Live(Group(bar, state), console=screen) if screen.is_terminal else nullcontext():
        on_read = partial(_advance(bar), "reading files")

        def on_round(record: RoundRecord) -> None:
            state.plain = describe_round(record)
            bar.update(task, completed=record["round"])
            if not screen.is_terminal:
                say(f"{title}: round {record['round']}/{rounds}  {state}", error=True)

        yield on_round, on_read


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """One bar, to be updated with (done, total)."""
    with stages() as on_progress:
        yield partial(on_progress, what)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar a stage, to be updated with (stage, done, total); without a terminal, a line every tenth."""
    bar = _bar()
    with bar if screen.is_terminal else nullcontext():
        yield _advance(bar)


def _advance(bar: Progress) -> Callable[[str, int, int], None]:
    tasks: dict[str, TaskID] = {}

    def on_progress(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total)
        bar.update(tasks[stage], completed=done, total=total)
        if not screen.is_terminal and done * 10 // total > (done - 1) * 10 // total:
            say(f"{stage}: {done}/{total}", error=True)

    return on_progress


def show_result(result: Result) -> None:
    """Prints what a finished run reached and cost."""
    summary = result.summary
    title = f"{summary['experiment']}: test, mean over hospitals"
    table = make_table(title, "model", *numbers(*map(with_unit, result.test)))
    for which in TESTED:
        test = summary["test"][which]
        values = (f"{or_nan(value):.3f}" for value in test["mean"].values())
        table.add_row(f"{which} round ({test['round']})", *values)
    console = terminal()
    if result.test:
        console.print(table)
    lines = [*describe_test(summary["test"]["last"], summary["headline"]), describe_cohort(summary["cohort"])]
    if baseline := describe_baseline(summary):
        lines.append(baseline)
    lines += [printable(f"note: {note}", one_line=True) for note in summary["cohort"].get("notes", ())]
    if summary["stopped"]:
        lines.append(f"the budget ended the run: {summary['stopped']}")
    lines += summary_in_words(summary)
    for line in lines:
        console.print(line)
    console.print("not covered by ε: " + "; ".join(summary["not_covered_by_epsilon"]))
    console.print(f"run folder: {result.folder}", soft_wrap=True)


def show_comparison(results: Mapping[str, Result]) -> None:
    """Prints several runs side by side: test metrics of the last round's model, v, and ε for both units."""
    first = next(iter(results.values()))
    metrics = list(first.test)
    table = make_table(
        f"test of the last model, mean over hospitals; ε at δ = {first.summary['delta']:g}",
        "run", *numbers(*metrics, "v"), *uncut("ε for a\nhospital", "ε inter-\nmediary"),
        caption="A smaller ε is more private. Splitting buys accuracy by protecting an intermediary; "
        "the hospital as a whole is protected far less.",
    )  # fmt: skip
    for title, result in results.items():
        table.add_row(
            title,
            *(f"{value:.3f}" for value in result.test.values()),
            str(result.summary["intermediaries"]),
            show_epsilon(result.epsilon.hospital),
            show_epsilon(result.epsilon.intermediary),
        )
    console = terminal()
    print_table(console, table, optional=(*reversed(metrics[1:]), "v"))
    for title, result in results.items():
        console.print(f"{title}: {result.folder}", soft_wrap=True)
