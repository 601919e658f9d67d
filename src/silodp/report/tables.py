"""The tables of a page: images by hospital, results by hospital, images one by one, runs side by side."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from silodp.privacy.events import UNITS
from silodp.report.metric import class_name, metric, shown
from silodp.runs.schema import ModelTest, Values
from silodp.runs.wording import SEEN, show_epsilon, show_interval, tested_on

if TYPE_CHECKING:
    from silodp.inference.evaluation import ImageScore
    from silodp.report.reading import Run

Edges = Mapping[str, Sequence[float | None]]

MOST_CLASSES = 4  # that get a column each
MOST_IMAGES = 10  # in the table of single images


@dataclass(frozen=True)
class Bar:
    """A value with a bar before it, of this length in percent."""

    text: str
    length: float

    def __str__(self) -> str:
        return self.text


Row = Sequence[str | Bar]


@dataclass(frozen=True)
class Table:
    """Rows whose first cell is a heading, and perhaps a last row with means or sums."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Row]
    total: Row = ()


def holdings(run: Run) -> Table | None:
    """Images by hospital and part; None before the run has written cohort.json."""
    if run.cohort is None:
        return None
    counted = run.classes if run.cohort["target"] == "class" and len(run.classes) <= MOST_CLASSES else []
    titles, counts = [], []
    for number, (name, parts) in enumerate(run.cohort["hospitals"].items()):
        titles.append(name if number < run.experiment.members else f"{name} (does not train)")
        images = [part["images"] for part in (parts["train"], parts["validation"], parts["test"])]
        counts.append(images + [parts["train"]["classes"].get(which, 0) for which in counted])
    sums = [sum(column) for column in zip(*counts, strict=True)]
    headings = ["Hospital", "Training images", "Validation", "Test"]
    headings += [f"Training: {class_name(which)}" for which in counted]
    return Table(
        "Images that each hospital holds",
        headings,
        [[title, *map("{:,}".format, own)] for title, own in zip(titles, counts, strict=True)],
        ["Together", *map("{:,}".format, sums)],
    )


def results(run: Run) -> Table | None:
    """Test metrics by hospital: all of the last model, the headline of the best one.

    None before the test, and where no hospital shares them.
    """
    last, best = run.test("last"), run.test("best")
    if last is None or best is None or not last["tried"]:
        return None
    caption = (
        f"Test results of the last model (round {last['round']}), {SEEN[last['batch']]}, with 95 % "
        f"intervals, and of the best round ({best['round']})"
    )
    return scored(caption, last, run, best)


def scored(caption: str, test: ModelTest, run: Run, best: ModelTest | None = None) -> Table:
    """All metrics of a test by hospital, and the headline of the test of the `best` model if given."""
    names = list(test["mean"])
    images, patients = tested_on(test)
    headings = ["Hospital", *(metric(name, run.classes).name for name in names)]
    headings += [f"{metric(run.headline).name}, best round"] * (best is not None)
    headings += ["Images", *["Patients"] * (patients is not None)]

    def row(title: str, values: Values, edges: Edges, of_best: Values, counts: Sequence[int | None]) -> Row:
        cells = [_cell(values.get(name), name, name == run.headline, edges.get(name)) for name in names]
        if best is not None:
            cells.append(_cell(of_best.get(run.headline), run.headline, False))
        return [title, *cells, *(f"{count:,}" for count in counts if count is not None)]

    def of_hospital(name: str, values: Values) -> Row:
        tried = test["tried"].get(name, {"images": 0, "patients": 0})  # where the file lacks them
        edges = test["intervals"]["hospitals"].get(name, {})
        of_best = best["hospitals"].get(name, {}) if best else {}
        return row(name, values, edges, of_best, (tried["images"], tried["patients"]))

    edges, of_best = test["intervals"]["mean"], best["mean"] if best else {}
    return Table(
        caption,
        headings,
        [of_hospital(name, values) for name, values in test["hospitals"].items()],
        row("Mean over hospitals", test["mean"], edges, of_best, (images, patients)),
    )


def _cell(
    value: float | None, name: str, with_bar: bool, edges: Sequence[float | None] | None = None
) -> str | Bar:
    places = 3 if metric(name).bounded else 1
    interval = show_interval(edges, places)
    text = shown(value, places) + (f" ({interval})" if interval else "")
    if not with_bar or value is None or not math.isfinite(value):
        return text
    return Bar(text, max(0.0, min(100.0, 100 * value)))


def worst(images: Sequence[ImageScore], run: Run) -> Table | None:
    """The images with the lowest scores, with the metrics that are defined for a single image."""
    names = [name for name in images[0].values if all(math.isfinite(one.values[name]) for one in images)]
    if not names:
        return None
    chosen = sorted(images, key=lambda one: one.values[names[0]])[:MOST_IMAGES]
    return Table(
        f"{metric(names[0]).name}: the lowest {len(chosen)} of {len(images):,} images",
        ["Image", "Hospital", *(metric(name, run.classes).name for name in names)],
        [
            [one.name, one.hospital, *(_cell(one.values[name], name, name == names[0]) for name in names)]
            for one in chosen
        ],
    )


def comparison(runs: Sequence[Run]) -> Table:
    """A row for each run: ε, hospital first, then test results."""
    headlines = list(dict.fromkeys(run.headline for run in runs))
    images = any(run.statement is not None and run.statement.epsilon["image"] is not None for run in runs)
    headings = ["Run", "ε for a hospital", "ε for an intermediary", *(["ε for an image"] if images else [])]
    headings += [*(f"Test {metric(name).name}" for name in headlines), "δ", "v", "z", "Rounds"]
    rows = []
    for run in runs:
        test = run.test("last")
        metrics = [
            _cell(test["mean"].get(name), name, True, test["intervals"]["mean"].get(name))
            if test and run.headline == name
            else _cell(None, name, True)
            for name in headlines
        ]
        epsilons, rest = _privacy(run, images)
        rows.append([f"{run.label} {run.name}", *epsilons, *metrics, *rest])
    return Table("The runs side by side; test results of the last model, mean over hospitals", headings, rows)


def _privacy(run: Run, images: bool) -> tuple[list[str], list[str]]:
    """The ε of a run; then δ, v, z and rounds."""
    statement, private = run.statement, run.experiment.privacy
    if statement is None:
        return ["–"] * (2 + images), ["–", "–", "–", f"{run.rounds}"]
    star = " *" if statement.unprotected and run.is_protected else ""
    texts = [show_epsilon(run.epsilon(unit)) + star for unit in UNITS]
    if images:
        image = statement.epsilon["image"]
        texts.append("–" if image is None else show_epsilon(image))
    least, most = statement.intermediaries
    parts = str(most) if least == most else f"{least}–{most}"
    done = f"{run.rounds}" + ("" if run.summary else f" of {run.experiment.rounds}, unfinished")
    return texts, [f"{statement.delta:g}", parts, f"{private.noise_multiplier:g}", done]


def differences(runs: Sequence[Run]) -> Table | None:
    """The settings in which runs differ; None where there are none."""
    flat = [_flat(tomllib.loads(run.experiment.to_toml())) for run in runs]
    keys = dict.fromkeys(key for tree in flat for key in tree if key not in ("name", "description"))
    unlike = [key for key in keys if len({str(tree.get(key)) for tree in flat}) > 1]
    if not unlike:
        return None
    return Table(
        "Settings in which the runs differ",
        ["Setting", *(f"{run.label} {run.name}" for run in runs)],
        [[key, *(_setting(tree.get(key)) for tree in flat)] for key in unlike],
    )


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return found


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
