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

SITES = (457, 285, 333, 290, 467, 976)
"""Training slices of the paper's six prostate sites, by the authors' lists."""


@cache
def printed() -> dict[str, Any]:
    """All figures: `printed()["table1"]["prostate"]["rows"]["DP-FedAvg"]["0.5"]`."""
    content: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    return content


def noise_multipliers(task: Task) -> tuple[float, ...]:
    """z of the task's columns in table 1."""
    return tuple(printed()["table1"][task]["noise"])


def table1(task: Task, optimizer: str, z: float, split: bool) -> tuple[float, ...] | None:
    """Mean and std of the first metric, then of the second, as fractions; None where nothing is printed."""
    rows = printed()["table1"][task]["rows"]
    row = rows[METHODS[optimizer] + ("+intermediary" if split and z else "")]
    return _fractions(row.get(_column(z)))


def appendix(table: str, row: str, z: float) -> tuple[float, ...] | None:
    """Dice and IoU as fractions of a row of an appendix table; None where nothing is printed."""
    return _fractions(printed()["appendix"][table].get(row, {}).get(_column(z)))


def inversion_ssim(z: float, split: bool) -> float | None:
    """Mean SSIM of reconstructed images; None where nothing is printed."""
    row = printed()["appendix"]["gradient_inversion_ssim"]["DP-FedAvg" + "+intermediary" * split]
    value: float | None = row.get(_column(z))
    return value


def _column(z: float) -> str:
    return f"{z:.1f}" if z else "none"


def _fractions(cell: list[float] | None) -> tuple[float, ...] | None:
    return tuple(number / 100 for number in cell) if cell else None
