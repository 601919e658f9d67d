"""Groups of runs and the columns of tables about them; the hospital always comes before the intermediary."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from silodp.privacy.events import Unit
from silodp.runs.wording import show_epsilon
from silodp.studies.study import CellRun, Plan
from silodp.tables import markdown_table

Row = TypeVar("Row")
Key = TypeVar("Key")
Columns = Sequence[tuple[str, Callable[[Row], str]]]
"""The columns of a table: the heading of each, and its text for a row."""

METRIC_NAMES = {"dice": "Dice", "iou": "IoU", "auc": "AUC", "accuracy": "accuracy"}


def table(rows: Iterable[Row], columns: Columns[Row]) -> str:
    """A Markdown table."""
    return markdown_table([head for head, _ in columns], [[show(row) for _, show in columns] for row in rows])


def select(found: Iterable[CellRun], **columns: Any) -> list[CellRun]:
    """The runs with these values in their columns."""
    return [one for one in found if all(one.cell.columns[key] == value for key, value in columns.items())]


def group_by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Runs, or rows about them, by `key`, in the order of first occurrence."""
    groups: dict[Key, list[Row]] = {}
    for one in rows:
        groups.setdefault(key(one), []).append(one)
    return groups


@dataclass(frozen=True)
class Pair:
    """Runs without and with intermediaries (or with something else) that are otherwise equal.

    Attributes:
        key: what they have in common, such as z.
    """

    key: Any
    without: list[CellRun]
    with_: list[CellRun]

    def runs(self, word: str) -> list[CellRun]:
        """Those "without", or "with"."""
        return self.with_ if word == "with" else self.without

    def gain(self, metric: str) -> float:
        """Gain of a test metric; NaN where it is undefined on either side."""
        return mean_test(self.with_, metric) - mean_test(self.without, metric)


def pairs(found: Sequence[CellRun], key: Callable[[CellRun], Any]) -> list[Pair]:
    """Groups runs by `key`, in the order of first occurrence."""
    return [
        Pair(common, select(runs, intermediaries="without"), select(runs, intermediaries="with"))
        for common, runs in group_by(found, key).items()
    ]


def gains(both: Iterable[Pair], metric: str, unit: str = "z") -> dict[str, float]:
    """The gain of each pair that has both sides, by its key, such as {"z = 0.5": 0.1}."""
    return {f"{unit} = {pair.key:g}": pair.gain(metric) for pair in both if pair.without and pair.with_}


PAIRED: Columns[Pair] = (
    ("ε hospital: without", lambda pair: epsilon(pair.without, "hospital")),
    ("with", lambda pair: epsilon(pair.with_, "hospital")),
    ("ε intermediary: with", lambda pair: epsilon(pair.with_, "intermediary")),
    ("v, last round", lambda pair: distinct(pair.with_, "intermediaries")),
)
"""Both ε of a pair, and its v."""


def scored(metric: str, printed: Callable[[Any, bool], Sequence[float]]) -> Columns[Pair]:
    """A test metric of a pair beside the paper's.

    Args:
        printed: the paper's mean and standard deviation, from the key of the pair and whether to split;
            empty where it prints none.
    """
    return (
        (f"{METRIC_NAMES[metric]}: without", lambda pair: spread_test(pair.without, metric)),
        ("with", lambda pair: spread_test(pair.with_, metric)),
        ("gain", lambda pair: signed(pair.gain(metric))),
        ("paper: without", lambda pair: _show_printed(printed(pair.key, False))),
        ("with", lambda pair: _show_printed(printed(pair.key, True))),
    )


def privacy(runs: Callable[[Row], Sequence[CellRun]]) -> Columns[Row]:
    """Both ε of the runs of a row."""
    return (
        ("ε hospital", lambda row: epsilon(runs(row), "hospital")),
        ("ε intermediary", lambda row: epsilon(runs(row), "intermediary")),
    )


def epsilon(runs: Iterable[CellRun], unit: Unit) -> str:
    """ε of the runs, as a range where it differs."""
    return between([one.epsilon(unit) for one in runs])


def between(values: Sequence[float]) -> str:
    """One ε, or the smallest and the largest of several."""
    if not values:
        return "–"
    low, high = show_epsilon(min(values)), show_epsilon(max(values))
    return low if low == high else f"{low}–{high}"


def distinct(
    found: Iterable[CellRun], key: Literal["rounds", "delta", "intermediaries", "parameters"]
) -> str:
    """The distinct values of a key in summary.json, in ascending order, such as «9, 10»."""
    numbers = sorted({one.summary[key] for one in found})
    return ", ".join(f"{value:,}" if key == "parameters" else f"{value:g}" for value in numbers) or "–"


def spread_test(runs: Iterable[CellRun], metric: str) -> str:
    """Mean and standard deviation of a test metric over seeds."""
    return spread([one.test(metric) for one in runs])


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation of the defined values, and how many are defined where not all are."""
    known = [value for value in values if not math.isnan(value)]
    text = f"{statistics.mean(known):.{digits}f}" if known else "–"
    if len(known) > 1:
        text += f" ± {statistics.stdev(known):.{digits}f}"
    return text + (f" ({len(known)} of {len(values)} seeds defined)" if len(known) < len(values) else "")


def mean_test(runs: Iterable[CellRun], metric: str) -> float:
    """Mean of a test metric over the runs for which it is defined; NaN if there are none."""
    return defined_mean(one.test(metric) for one in runs)


def points(runs: Mapping[Key, Sequence[CellRun]], metric: str) -> list[tuple[Key, float]]:
    """(key of its group, test metric) of each run, as `pictures.Line` takes them."""
    return [(key, one.test(metric)) for key, own in runs.items() for one in own]


def score_label(plan: Plan) -> str:
    """What such points are, for the axis."""
    several = ", a dot a seed" * (len(plan.seeds) > 1)
    return f"test {METRIC_NAMES[plan.metrics[0]]} (higher is better{several})"


def defined_mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.mean(known) if known else math.nan


def show(value: float, digits: int = 3) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def signed(value: float) -> str:
    """A difference with its sign."""
    return "–" if math.isnan(value) else f"{value:+.3f}"


def _show_printed(values: Sequence[float]) -> str:
    """The paper's mean and standard deviation."""
    return " ± ".join(f"{value:.3f}" for value in values) or "–"
