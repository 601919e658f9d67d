"""ROC curves: hits against false alarms as the threshold moves, for hospitals one by one and all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from silodp.report.chart import STYLES, Chart, Line, Point
from silodp.report.metric import class_name, name_of

MOST_POINTS = 200

Scored = Mapping[str, tuple[NDArray[np.float64], NDArray[np.int64]]]
"""By hospital: (n, classes) logits and (n,) classes."""


def log_odds(logits: NDArray[np.float64], column: int) -> NDArray[np.float64]:
    """(n,) log-odds of a class against the rest; probabilities of a confident network would round to 1."""
    from scipy.special import logsumexp

    odds: NDArray[np.float64] = logits[:, column] - logsumexp(np.delete(logits, column, axis=1), axis=1)
    return odds


def roc(scores: NDArray[np.float64], truth: NDArray[np.bool_]) -> tuple[Point, ...]:
    """(false-positive rate, true-positive rate) from (0, 0) to (1, 1); empty where a class is missing.

    Images with equal scores are counted together, so that ties give a slope instead of a random order.
    """
    if truth.all() or not truth.any() or not np.isfinite(scores).all():
        return ()
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    hits = np.append(0, np.cumsum(truth[order])[ends]) / truth.sum()
    alarms = np.append(0, np.cumsum(~truth[order])[ends]) / (~truth).sum()
    return tuple(zip(alarms.tolist(), hits.tolist(), strict=True))


def area(curve: Sequence[Point]) -> float:
    alarms, hits = zip(*curve, strict=True)
    return float(np.trapezoid(hits, alarms))


def roc_charts(scored: Scored, classes: Sequence[str]) -> list[Chart]:
    """One chart: of two classes the second, hospital by hospital; of more, each class against the rest."""
    logits = np.concatenate([found for found, _ in scored.values()])
    labels = np.concatenate([found for _, found in scored.values()])
    columns = [1] if logits.shape[1] == 2 else list(range(logits.shape[1]))
    lines = [Line("guessing", ((0.0, 0.0), (1.0, 1.0)), "reference")]
    if len(columns) == 1:
        for name, (values, truth) in scored.items():
            if curve := roc(log_odds(values, 1), truth == 1):
                lines.append(
                    Line("each hospital", thinned(curve), "faint", hint=f"{name}, AUC {area(curve):.3f}")
                )
    for column in columns[:STYLES]:
        if curve := roc(log_odds(logits, column), labels == column):
            name = "all test images together" if len(columns) == 1 else name_of(column, classes)
            style = column if len(columns) > 1 else 0
            lines.append(Line(f"{name} (AUC {area(curve):.3f})", thinned(curve), style=style))
    if all(line.kind == "reference" for line in lines):
        return []
    found = class_name(classes[1]) if len(columns) == 1 and len(classes) > 1 else "a class"
    return [
        Chart(
            f"ROC curve: finding «{found}»"
            if len(columns) == 1
            else "ROC curves: each class against the rest",
            "Hits against false alarms as the threshold moves. Nearer to the upper left corner is better.",
            "hits (share of true cases found)",
            tuple(lines),
            x_label="false alarms (share of other images)",
            x_range=(0.0, 1.0),
            y_range=(0.0, 1.0),
        )
    ]


def thinned(curve: Sequence[Point]) -> tuple[Point, ...]:
    """At most MOST_POINTS of the points."""
    if len(curve) <= MOST_POINTS:
        return tuple(curve)
    chosen = np.unique(np.linspace(0, len(curve) - 1, MOST_POINTS).round().astype(int))
    return tuple(curve[index] for index in chosen)
