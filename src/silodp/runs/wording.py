"""A run's figures as people read them, in terminals, tables and pages; hospital before intermediary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from silodp.models.start import IN_WORDS
from silodp.runs.schema import (
    CohortInShort,
    ModelTest,
    RoundRecord,
    StartRecord,
    Summary,
    or_infinite,
    or_nan,
)
from silodp.tasks.scores import FEW

if TYPE_CHECKING:
    from silodp.runs.listing import Listed

SEEN = {
    "any": "each judged by itself",
    "image": "one image at a time",
    "scan": "one patient's scan at a time",
    "hospital": "in batches of a hospital",
}
NO_FIGURES = "how well the model does cannot be said here: no hospital lets its figures out"


def sentence(text: str) -> str:
    """The text with a capital letter first and a full stop last."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def joined_by_and(words: Iterable[str]) -> str:
    """«a, b and c»."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def with_unit(metric: str) -> str:
    """A metric's name with its unit: distances are in pixels of the images that the network sees."""
    return f"{metric} (pixels)" if metric == "hd95" else metric


def describe_round(record: RoundRecord) -> str:
    """Metric, v, C and both ε of one line of metrics.jsonl."""
    metrics = list(record["validation"]["mean"].items())[:1]  # of a deployment: where hospitals let them out
    epsilon, bound = record["epsilon"], or_infinite(record["clip_bound"])
    hospital, intermediary = show_epsilon(epsilon["hospital"]), show_epsilon(epsilon["intermediary"])
    if epsilon["withdrawn"]:
        intermediary = "the same (v changed)"
    parts = [
        *(f"{metric} {or_nan(value):.3f}" for metric, value in metrics),
        f"v {record['intermediaries']}" + (" (capped)" if record["intermediaries_capped"] else ""),
        *([f"C {bound:.3g}"] if bound < math.inf else []),
        f"ε hospital {hospital}, intermediary {intermediary}",
    ]
    if not epsilon["covers_everything"]:
        parts.append("(not all covered)")
    return "  ".join(parts)


def describe_state(run: Listed) -> str:
    """How far a run has come, for a list of runs."""
    if run.state == "unfinished":
        return f"unfinished at round {run.rounds} of {run.planned}"
    return "stopped by budget" if run.state == "stopped" else run.state


def show_epsilon(value: float | None) -> str:
    """An ε as people read it; infinity, which files have as null, is no privacy at all."""
    value = or_infinite(value)
    if 0 < value < 1:
        return f"{value:.3g}"  # never a nought that is none
    return "∞" if value == math.inf else f"{value:,.1f}"


def describe_start(start: StartRecord) -> str:
    """What the network began with, and what that was trained on."""
    return f"start: {start['name']}, trained on {IN_WORDS[start['origin']]}"


def describe_cohort(cohort: CohortInShort) -> str:
    """Whose images these were, whether the hospitals are real, and what a model must beat."""
    text = f"data: {cohort['cohort']}, {cohort['images']:,} images, "
    text += cohort.get("partition", f"{cohort['hospitals']} hospitals")
    if cohort["left_out"]:
        text += f"; {cohort['left_out']} left out as unusable"
    return text


def show_interval(edges: Sequence[float | None] | None, places: int = 3) -> str:
    """A 95 % interval as people read it; empty where it is not defined."""
    low, high = map(or_nan, edges or (None, None))
    return f"{low:.{places}f}–{high:.{places}f}" if math.isfinite(low) and math.isfinite(high) else ""


def tested_on(test: ModelTest) -> tuple[int, int | None]:
    """How many test images, and of how many patients; None where that is not known."""
    tried = list(test["tried"].values())
    patients = [one["patients"] for one in tried]
    known = [count for count in patients if count is not None]
    return sum(one["images"] for one in tried), sum(known) if len(known) == len(patients) else None


def undefined_at(test: ModelTest, metric: str) -> list[str]:
    """The hospitals on whose test images a metric is not defined."""
    return [name for name, one in test["hospitals"].items() if math.isnan(or_nan(one.get(metric)))]


def describe_test(test: ModelTest, headline: str) -> list[str]:
    """A test figure and what it rests on; and warnings."""
    first, *more = describe_certainty(test, headline)
    if not test["tried"]:
        return [first]
    return [f"{headline} {or_nan(test['mean'].get(headline)):.3f}, {first}", *more]


def describe_certainty(test: ModelTest, headline: str) -> list[str]:
    """What a test figure rests on: its interval, on whom, how the network saw the images; and warnings."""
    if not test["tried"]:
        return [NO_FIGURES]
    images, patients = tested_on(test)
    edges = show_interval(test["intervals"]["mean"].get(headline))
    whom = f"{images:,} test images" + (f" of {patients:,} patients" if patients is not None else "")
    lines = [(f"95 % interval {edges}; " if edges else "") + f"{whom}, {SEEN[test['batch']]}"]
    if other := test["other"]:
        lines.append(
            f"{SEEN[other['batch']]} the same model has {headline} "
            f"{or_nan(other['mean'].get(headline)):.3f}: with its norm layers an image's prediction depends "
            "on the others of its batch; with model.norm=group it does not"
        )
    lacking = undefined_at(test, headline)
    if lacking and len(lacking) < len(test["hospitals"]):
        count = len(test["hospitals"])
        lines.append(
            f"{headline} is the mean of {count - len(lacking)} of {count} hospitals: on the test images of "
            f"{joined_by_and(lacking[:6])}{' and others' if len(lacking) > 6 else ''} it is not defined"
        )
    if not edges and any((one["patients"] or one["images"]) == 1 for one in test["tried"].values()):
        lines.append("no interval: a hospital with one test patient does not show how patients differ")
    few = images if patients is None else patients
    if few < FEW:
        what = "images" if patients is None else "patients"
        lines.append(f"only {few} test {what}: a figure from fewer than {FEW}, and its interval, say little")
    return lines


def describe_baseline(summary: Summary) -> str:
    """Whether the model does better than a guess by slice position, where that is known."""
    position = summary["cohort"].get("position_auc")
    if position is None:
        return ""
    model = or_nan(summary["test"]["last"]["mean"]["auc"])
    verdict = "above" if model > position else "NOT above: it may know no more than where a slice is"
    guess = f"slice position alone predicts the class with AUC {position:.3f}"
    return f"{guess}; the model's {model:.3f} is {verdict}"
