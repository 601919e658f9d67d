"""What a run looks like in a terminal: a line a round, a table at the end; hospital before intermediary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAVY
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

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
)

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead
    from silodp.runs.result import Result
    from silodp.runs.schema import RoundRecord
    from silodp.runs.training import OnRound

NAME = 20  # letters of a name that stay on one line where there is room for little else

screen = terminal(stderr=True)
"""Progress and notes; results go to standard output."""


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=screen)


def titled_table(title: str, caption: str | None = None) -> Table:
    """An empty table in the one style that all have."""
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAVY)


def print_table(console: Console, table: Table, may_go: Sequence[str] = ()) -> None:
    """Prints a table; where the terminal is too narrow for it, columns give way.

    Those of `no_wrap`, as ε is, are never cut: first the columns `may_go`, by heading, are left out one after
    the other, then the rest is broken into lines.
    """
    gone: list[str] = []
    for heading in may_go:
        if sum(_least_width(column) for column in table.columns) <= console.width:
            break
        table.columns = [column for column in table.columns if column.header != heading]
        gone.append(heading.replace("\n", " "))
    console.print(table)
    if gone:
        console.print(f"no room for: {', '.join(gone)}")


def _least_width(column: Column) -> int:
    """So wide that no word of a column is broken, but for those that may be, and the space around it."""
    cells = [str(cell) for cell in (column.header, *column.cells)]
    parts = [part for cell in cells for part in (cell.splitlines() if column.no_wrap else cell.split())]
    longest = max(map(len, parts), default=0)
    return 3 + (min(longest, NAME) if column.overflow == "fold" else longest)


@contextmanager
def progress(title: str, rounds: int) -> Iterator[tuple[OnRound, OnRead]]:
    """Bars for the rounds of a run and for files that are read before it; plain lines without a terminal."""
    bar, state = _bar(), Text("preparing the data")
    task = bar.add_task(title, total=rounds)
    # The state has a line of its own: with both ε it is too long to stand beside the bar.
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
    """A bar for work that counts up."""
    with stages() as on_progress:
        yield lambda done, total: on_progress(what, done, total)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar a stage; a line every tenth of it where there is no terminal."""
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
    """The end of a run."""
    summary = result.summary
    table = titled_table(f"{summary['experiment']}: test, mean over hospitals")
    table.add_column("model")
    for metric in result.test:
        table.add_column(metric, justify="right")
    for which in TESTED:
        test = summary["test"][which]
        values = (f"{or_nan(value):.3f}" for value in test["mean"].values())
        table.add_row(f"{which} round ({test['round']})", *values)
    console = terminal()
    if result.test:
        console.print(table)
    for line in describe_test(summary["test"]["last"], summary["headline"]):
        console.print(line)
    console.print(describe_cohort(summary["cohort"]))
    if baseline := describe_baseline(summary):
        console.print(baseline)
    for note in summary["cohort"].get("notes", ()):
        console.print(printable(f"note: {note}", one_line=True))
    if summary["stopped"]:
        console.print(f"the budget ended the run: {summary['stopped']}")
    for sentence in summary_in_words(summary):
        console.print(sentence)
    console.print("not covered by ε: " + "; ".join(summary["not_covered_by_epsilon"]))
    console.print(f"run folder: {result.folder}", soft_wrap=True)


def show_comparison(results: Mapping[str, Result]) -> None:
    """Several runs side by side: test metrics of the last round's model, v, and ε for both units."""
    first = next(iter(results.values())).summary
    table = titled_table(
        f"test of the last model, mean over hospitals; ε at δ = {first['delta']:g}",
        "A smaller ε is more private. Splitting buys accuracy by protecting an intermediary; "
        "the hospital as a whole is protected far less.",
    )
    metrics = list(next(iter(results.values())).test)
    table.add_column("run")
    for heading in (*metrics, "v"):
        table.add_column(heading, justify="right")
    for heading in ("ε for a\nhospital", "ε inter-\nmediary"):
        table.add_column(heading, justify="right", no_wrap=True)
    for title, result in results.items():
        table.add_row(
            title,
            *(f"{value:.3f}" for value in result.test.values()),
            str(result.summary["intermediaries"]),
            show_epsilon(result.epsilon.hospital),
            show_epsilon(result.epsilon.intermediary),
        )
    console = terminal()
    print_table(console, table, may_go=(*reversed(metrics[1:]), "v"))
    for title, result in results.items():
        console.print(f"{title}: {result.folder}", soft_wrap=True)
