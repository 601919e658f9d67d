"""What a run looks like in a terminal: a line a round, a table at the end; hospital before intermediary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAVY
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from silodp.terminal import console as terminal
from silodp.terminal import printable, say

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead
    from silodp.privacy.accountants import Epsilon
    from silodp.training import OnRound, Result

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

        def on_round(record: dict[str, Any]) -> None:
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


def describe_round(record: Mapping[str, Any]) -> str:
    """Metric, v, C and both ε of one line of metrics.jsonl."""
    metric, value = next(iter(record["validation"]["mean"].items()))
    epsilon = record["epsilon"]
    hospital, intermediary = show_epsilon(epsilon["hospital"]), show_epsilon(epsilon["intermediary"])
    if epsilon.get("withdrawn"):
        intermediary = "the same (v changed)"
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
    if 0 < value < 1:
        return f"{value:.3g}"  # never a nought that is none
    return "∞" if value == float("inf") else f"{value:,.1f}"


def show_result(result: Result) -> None:
    """The end of a run."""
    summary, epsilon = result.summary, result.epsilon
    table = titled_table(f"{summary['experiment']}: test, mean over hospitals")
    table.add_column("model")
    for metric in result.test:
        table.add_column(metric, justify="right")
    for which in ("last", "best"):
        test = summary["test"][which]
        table.add_row(
            f"{which} round ({test['round']})", *(f"{value:.3f}" for value in test["mean"].values())
        )
    console = terminal()
    console.print(table)
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


def describe_cohort(cohort: Mapping[str, Any]) -> str:
    """Whose images these were, whether the hospitals are real, and what a model must beat."""
    text = f"data: {cohort['cohort']}, {cohort['images']:,} images, "
    text += str(cohort.get("partition", f"{cohort['hospitals']} hospitals"))
    if cohort.get("left_out"):
        text += f"; {cohort['left_out']} left out as unusable"
    return text


def describe_baseline(summary: Mapping[str, Any]) -> str:
    """Whether the model does better than a guess by slice position, where that is known."""
    position = summary["cohort"].get("position_auc")
    if position is None:
        return ""
    model = summary["test"]["last"]["mean"]["auc"]
    verdict = "above" if model > position else "NOT above: it may know no more than where a slice is"
    guess = f"slice position alone predicts the class with AUC {position:.3f}"
    return f"{guess}; the model's {model:.3f} is {verdict}"


def describe_epsilon(epsilon: Epsilon, summary: Mapping[str, Any]) -> str:
    """Both units and both neighbours in a sentence, hospital first."""
    swap = epsilon.replace_one
    text = (
        f"ε for a hospital {show_epsilon(epsilon.hospital)}, for an intermediary "
        f"{show_epsilon(epsilon.intermediary)} (add-or-remove neighbours; replace-one: "
        f"{show_epsilon(swap.hospital)} and {show_epsilon(swap.intermediary)}); "
        f"δ {summary['delta']:g}, v {summary['intermediaries']}, accountant: {epsilon.accountant}"
    )
    if epsilon.withdrawn:
        text += f"; {epsilon.withdrawn}"
    if epsilon.image is not None:
        text += f"; for an image {show_epsilon(epsilon.image)} at δ {summary['image_delta']:g}"
    return text


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
