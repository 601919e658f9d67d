"""What a run looks like in a terminal: a line a round, a table at the end; hospital before intermediary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAVY
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from silodp.cli.terminal import console as terminal
from silodp.cli.terminal import say
from silodp.errors import printable
from silodp.runs.schema import TESTED, or_nan
from silodp.runs.wording import (
    describe_baseline,
    describe_cohort,
    describe_epsilon,
    describe_round,
    describe_test,
    show_epsilon,
)

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead
    from silodp.runs.schema import RoundRecord
    from silodp.runs.training import OnRound, Result

screen = terminal(stderr=True)
"""Progress and notes; results go to standard output."""


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=screen)


def titled_table(title: str, caption: str | None = None) -> Table:
    """An empty table in the one style that all have."""
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAVY)


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
    summary, epsilon = result.summary, result.epsilon
    table = titled_table(f"{summary['experiment']}: test, mean over hospitals")
    table.add_column("model")
    for metric in result.test:
        table.add_column(metric, justify="right")
    for which in TESTED:
        test = summary["test"][which]
        values = (f"{or_nan(value):.3f}" for value in test["mean"].values())
        table.add_row(f"{which} round ({test['round']})", *values)
    console = terminal()
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
    console.print(describe_epsilon(epsilon, summary))
    console.print("not covered by ε: " + "; ".join(summary["not_covered_by_epsilon"]))
    console.print(f"run folder: {result.folder}", soft_wrap=True)


def show_comparison(results: Mapping[str, Result]) -> None:
    """Several runs side by side: test metrics of the last round's model, v, and ε for both units."""
    first = next(iter(results.values())).summary
    table = titled_table(
        f"test after {first['rounds']} rounds, mean over hospitals; ε at δ = {first['delta']:g}",
        "A smaller ε is more private. Splitting buys accuracy by protecting an intermediary; "
        "the hospital as a whole is protected far less.",
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
    console = terminal()
    console.print(table)
    for title, result in results.items():
        console.print(f"{title}: {result.folder}", soft_wrap=True)
