"""The figures that the paper prints, to stand beside ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

Task = Literal["prostate", "ich"]

METHODS = {
    "fedavg": "DP-FedAvg",
    "fedadam": "DP-FedAdam",
    "fednova": "DP-FedNova",
    "dp2-rmsprop": "DP2-RMSProp",
}
"""Server optimizers under the paper's names."""

METRICS: dict[Task, tuple[str, str]] = {"prostate": ("dice", "iou"), "ich": ("auc", "accuracy")}
"""The two metrics that the paper prints, the headline first."""

SITES = (457, 285, 333, 290, 467, 976)
"""Training slices of the paper's six prostate sites, by the authors' lists."""


@cache
def printed() -> dict[str, Any]:
    """All figures: `printed()["table1"]["prostate"]["rows"]["DP-FedAvg"]["0.5"]`."""
    content: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    return content


def hospitals(task: Task) -> int:
    """How many the paper has."""
    count: int = printed()["table1"][task]["hospitals"]
    return count


def noise_multipliers(task: Task) -> tuple[float, ...]:
    """z of the task's columns in table 1."""
    return tuple(printed()["table1"][task]["noise"])


def table1(task: Task, optimizer: str, z: float, split: bool) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each metric, as fractions."""
    row = printed()["table1"][task]["rows"][METHODS[optimizer] + "+intermediary" * split]
    mean, std, second_mean, second_std = (number / 100 for number in row[_column(z)])
    first, second = METRICS[task]
    return {first: (mean, std), second: (second_mean, second_std)}


def appendix(table: str, row: str, z: float) -> dict[str, float]:
    """Dice and IoU of a row of an appendix table, as fractions."""
    dice, iou = printed()["appendix"][table][row][_column(z)]
    return {"dice": dice / 100, "iou": iou / 100}


def inversion_ssim(z: float, split: bool) -> float:
    """Mean SSIM of reconstructed images."""
    row = printed()["appendix"]["gradient_inversion_ssim"]["DP-FedAvg" + "+intermediary" * split]
    value: float = row[_column(z)]
    return value


def _column(z: float) -> str:
    return f"{z:.1f}" if z else "none"
