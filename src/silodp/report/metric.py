"""Names and explanations of metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """Name and explanation of a metric."""

    name: str
    about: str
    bounded: bool = True  # from 0 to 1, larger is better


METRICS = {
    "dice": Metric("Dice", "overlap of the predicted and the true outline; higher is better, 1 is perfect"),
    "iou": Metric("IoU", "intersection over union, a stricter overlap; higher is better, 1 is perfect"),
    "hd95": Metric("HD95", "95 % Hausdorff distance of the outlines, in pixels; lower is better", False),
    "auc": Metric("AUC", "area under the ROC curve; higher is better, 1 is perfect, 0.5 is guessing"),
    "accuracy": Metric("Accuracy", "share of correctly classified images; higher is better"),
    "sensitivity": Metric("Sensitivity", "share of diseased images that are found; higher is better"),
    "specificity": Metric("Specificity", "share of healthy images classified as healthy; higher is better"),
    "truth": Metric(
        "Probability of the truth", "probability that the model gives to the true class; 1 is perfect"
    ),
    "f1": Metric("F1", "balance of finds and false alarms; higher is better, 1 is perfect"),
}


def metric(name: str, classes: Sequence[str] | None = None) -> Metric:
    if name in METRICS:
        return METRICS[name]
    if name.startswith("dice_") and name[5:].isdigit():
        mask = name_of(int(name[5:]) - 1, classes or [], "mask")
        return Metric(f"Dice, {mask}", "overlap for this mask alone; higher is better, 1 is perfect")
    return Metric(name, "", False)


def class_name(name: str, kind: str = "class") -> str:
    """The name, with a word before a mere number, which would look like a count."""
    return f"{kind} {name}" if name.isdigit() else name


def name_of(number: int, names: Sequence[str], kind: str = "class") -> str:
    """The name of a class or mask, by its number from 0; without a name "class 0" or "mask 1"."""
    return class_name(names[number] if number < len(names) else str(number + (kind == "mask")), kind)


def shown(value: float | None, places: int = 3) -> str:
    """A metric as text; a dash where it is undefined."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{places}f}"
