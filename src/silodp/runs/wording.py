"""A run's figures as people read them, in terminals, tables and pages; hospital before intermediary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silodp.privacy.accountants import Epsilon


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
