"""The charts of a page: rounds of a run, several runs in one chart, single images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

from silodp.report.chart import Chart, Line, Point, is_empty, known
from silodp.report.metric import metric
from silodp.report.roc import thinned
from silodp.runs.schema import RoundRecord
from silodp.runs.wording import sentence, show_epsilon

if TYPE_CHECKING:
    from silodp.inference.evaluation import ImageScore
    from silodp.report.reading import Run
    from silodp.settings import BudgetSettings

WIDE = 20  # ratio of largest to smallest value from which on the scale is logarithmic


def training_charts(run: Run) -> tuple[list[Chart], list[str]]:
    """Charts over the rounds of a run, and a sentence for each that cannot be drawn."""
    hospitals = {name: _validation(run, name) for name in run.hospitals}
    loss = Chart(
        "Training loss",
        "What training makes smaller, at the hospitals; lower is better.",
        "mean loss",
        (_single("mean over hospitals", _over_rounds(run, lambda line: line["train_loss"])),),
    )
    intermediaries = Chart(
        "v: parts that each hospital is split into",
        "More parts drown less in the noise, but each part is protected, not the whole hospital.",
        "parts (v)",
        (_single("v", _over_rounds(run, lambda line: line["intermediaries"])),),
        scale="whole",
    )
    clip_bound = Chart(
        "C: the longest update that counts in full",
        "Longer updates are cut to this length (the clip bound). Noise is in proportion to it.",
        "length (C)",
        (_single("C", _over_rounds(run, lambda line: line["clip_bound"])),),
    )
    found = (
        (headline_chart(run.headline, _validation(run), hospitals), _no_headline(run)),
        (loss, _not_recorded(run, "the training loss")),
        (intermediaries, ""),  # every round has a v
        (_lambda(run), _no_lambda(run)),
        (clip_bound, "Updates were not clipped, so the clip bound C has no curve."),
    )
    charts = [chart for chart, _ in found if not is_empty(chart)]
    missing = [why for chart, why in found if is_empty(chart)]
    return charts, missing if run.metrics else []


def headline_chart(
    headline: str, mean: tuple[Point, ...], hospitals: Mapping[str, tuple[Point, ...]]
) -> Chart:
    """A validation metric over rounds: the mean, and each hospital in the background."""
    faint = [Line("each hospital", points, "faint", hint=name) for name, points in hospitals.items()]
    lines = (*faint, _single("mean over hospitals", mean))
    return _metric_chart(headline, "How well the model does: {} on validation images", lines)


def _metric_chart(headline: str, title: str, lines: tuple[Line, ...]) -> Chart:
    what = metric(headline)
    return Chart(
        title.format(what.name),
        sentence(what.about),
        what.name,
        lines,
        y_range=(0.0, 1.0),
        levels=((0.5, "guessing"),) if headline == "auc" else (),
    )


def _lambda(run: Run) -> Chart:
    members = run.experiment.members
    expected = run.experiment.participation.expected_hospitals(members)
    target = f"1/{expected:g}" if expected == round(expected) else f"{1 / expected:.3g}"
    line = _single("λ", _over_rounds(run, lambda line: line["lambda"]) if _noise_at_the_server(run) else ())
    values = [1 / expected, *(y for _, y in line.points if y)]
    wide = min(values) > 0 and max(values) > WIDE * min(values)
    return Chart(
        "λ: noise compared with what is learnt",
        "Size of the noise over the size of all updates. The paper's rule for v steers it to 1/N, "
        "N being the hospitals that take part in a round.",
        "λ",
        (line,),
        scale="log" if wide else "linear",
        levels=((1 / expected, f"1/N = {target}"),),
    )


def epsilon_chart(run: Run) -> Chart | None:
    """Both ε over rounds, with the budget if it is of the same kind; None if there is nothing to draw."""
    statement = run.statement
    if statement is None:
        return None
    return spending_chart(
        statement.by_round,
        statement.delta,
        run.experiment.budget,
        withdrawn=bool(statement.epsilon["withdrawn"]),
    )


def spending_chart(
    rounds: Sequence[tuple[int, float | None, float | None]],
    delta: float,
    limit: BudgetSettings | None,
    *,
    withdrawn: bool,
) -> Chart | None:
    """Both ε over rounds, add-or-remove; None where there is nothing to draw.

    Args:
        rounds: (round, ε for a hospital, ε for an intermediary); None or infinite: no guarantee.
        delta: of these ε.
        limit: the budget; drawn if it has the same neighbours and δ.
        withdrawn: whether the intermediary has no ε.
    """
    lines = [
        Line(
            f"one {unit}",
            known((number, pair[place]) for number, *pair in rounds),
            style=place,
            label=show_epsilon(rounds[-1][1 + place]),
        )
        for place, unit in enumerate(("hospital", "intermediary"))
        if rounds
    ]
    if lines and (withdrawn or lines[0].points == lines[1].points):
        why = (
            "one hospital; v changed, so an intermediary has none of its own"
            if withdrawn
            else "one hospital, not split: the same for an intermediary"
        )
        lines = [Line(why, lines[0].points, label=lines[0].label)]
    # The chart is for add-or-remove neighbours at the run's δ; other budgets do not compare.
    fits = limit and (limit.neighbours, limit.delta or delta) == ("add-or-remove", delta)
    levels = ((limit.epsilon, f"budget for one {limit.unit}: {limit.epsilon:,g}"),) if limit and fits else ()
    chart = Chart(
        "ε after each round",
        "Lower is more private. The scale is logarithmic: each step up multiplies.",
        "ε",
        tuple(lines),
        scale="log",
        levels=levels,
    )
    return None if is_empty(chart) else chart


def comparison_charts(runs: Sequence[Run]) -> list[Chart]:
    """Metric and both ε of several runs, with one chart of the metric for each task."""
    charts = []
    for headline in dict.fromkeys(run.headline for run in runs):
        lines = _of_runs(runs, [(run, _validation(run)) for run in runs if run.headline == headline])
        charts.append(_metric_chart(headline, "{} on validation images, mean over hospitals", lines))
    for place, unit in enumerate(("hospital", "intermediary")):
        spent = [
            (run, known((row[0], row[1 + place]) for row in run.statement.by_round))
            for run in runs
            if run.statement is not None
        ]
        charts.append(
            Chart(
                f"ε for one {unit}",
                "Lower is more private; logarithmic scale. Runs without privacy (ε = ∞) have no line.",
                "ε",
                _of_runs(runs, spent),
                scale="log",
            )
        )
    return [chart for chart in charts if not is_empty(chart)]


def reach_chart(images: Sequence[ImageScore]) -> Chart:
    """The share of images that reach a score, for each hospital and for all."""
    key = next(iter(images[0].values))
    what, values = metric(key), defaultdict[str, list[float]](list)
    for image in images:
        values[image.hospital].append(image.values[key])
    together = [value for found in values.values() for value in found]
    several = values if len(values) > 1 else {}
    faint = [Line("each hospital", _reached(found), "faint", hint=one) for one, found in several.items()]
    return Chart(
        f"{what.name}: how many images reach how much",
        f"{sentence(what.about)} A line further up and to the right is better.",
        "share of images that reach it",
        (*faint, Line(f"all images (half of them reach {median(together):.3f})", _reached(together))),
        x_label=what.name,
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
    )


def _reached(values: Sequence[float]) -> tuple[Point, ...]:
    """The share of values ≥ x over x as steps; empty where a value is undefined."""
    if not all(map(isfinite, values)):
        return ()
    points = [(0.0, 1.0)]
    for done, value in enumerate(sorted(values)):
        points += [(value, 1 - done / len(values)), (value, 1 - (done + 1) / len(values))]
    return thinned([*points, (1.0, points[-1][1])])


def _of_runs(runs: Sequence[Run], lines: Iterable[tuple[Run, tuple[Point, ...]]]) -> tuple[Line, ...]:
    """A line for each run, with the same colour in every chart."""
    return tuple(
        Line(f"{run.label} {run.name}", points, style=runs.index(run), label=run.label)
        for run, points in lines
        if any(y is not None for _, y in points)
    )


def _single(name: str, points: tuple[Point, ...]) -> Line:
    """A line labelled with its last value."""
    values = [y for _, y in points if y is not None]
    return Line(name, points, label=_short(values[-1]) if values else "")


def _short(value: float) -> str:
    """Three digits, or fewer where the text would be too long: 0.0068, not 0.00684."""
    texts = (f"{value:.{digits}g}" for digits in (3, 2, 1))
    return next((text for text in texts if len(text) <= 6), f"{value:.0e}")


def _over_rounds(run: Run, of: Callable[[RoundRecord], float | None]) -> tuple[Point, ...]:
    return known((record["round"], of(record)) for record in run.metrics)


def _validation(run: Run, hospital: str | None = None) -> tuple[Point, ...]:
    """The headline metric of a hospital, or its mean over all hospitals."""

    def of(record: RoundRecord) -> float | None:
        found = record["validation"]
        values = found["mean"] if hospital is None else found["hospitals"].get(hospital, {})
        return values.get(run.headline)

    return _over_rounds(run, of)


def _noise_at_the_server(run: Run) -> bool:
    return run.experiment.is_private and run.experiment.privacy.level == "client"


def _no_headline(run: Run) -> str:
    name = metric(run.headline).name
    if not run.has_figures:
        return f"No hospital lets its figures out, so {name} has no curve."
    return f"{name} is not defined in any round, so it has no curve."


def _not_recorded(run: Run, what: str) -> str:
    if not run.experiment.diagnostics:
        return f"The run kept no diagnostics (diagnostics = false), so {what} has no curve."
    return f"The run recorded no value of {what}, so it has no curve."


def _no_lambda(run: Run) -> str:
    if not run.experiment.is_private:
        return "There was no noise, so λ has no curve."
    if not _noise_at_the_server(run):
        return "The noise is added at the hospitals, step by step, so λ has no curve."
    return _not_recorded(run, "λ")
