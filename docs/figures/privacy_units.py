"""Draws docs/figures/privacy-units.png: what one observer of one round can tell, for both units.

python docs/figures/privacy_units.py
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from silodp.privacy.calibration import Setting

NOISE, PARTS, ROUNDS, DELTA = 0.5, 15, 100, 0.1
WITHOUT, WITH = "#4d4d4d", "#c8553d"


def bell(x: np.ndarray, mean: float) -> np.ndarray:
    return np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)


def main() -> None:
    figures = Setting(DELTA, PARTS).figures(NOISE, ROUNDS)
    figure, rows = plt.subplots(2, 1, figsize=(9.5, 4.6), layout="constrained", sharex=True)
    x = np.linspace(-5, 36, 2000)
    for axes, unit, parts in zip(rows, ("hospital", "intermediary"), (PARTS, 1), strict=True):
        apart = parts / NOISE
        epsilon = figures[unit, "add-or-remove"].epsilon
        for mean, colour in ((0.0, WITHOUT), (apart, WITH)):
            axes.fill_between(x, bell(x, mean), color=colour, alpha=0.25, linewidth=0)
            axes.plot(x, bell(x, mean), color=colour)
        axes.annotate(
            "",
            (apart, 0.43),
            (0, 0.43),
            arrowprops={"arrowstyle": "<->", "color": "black", "shrinkA": 0, "shrinkB": 0},
        )
        moves = f"it moves the sum by {'v·C = 15·C' if parts > 1 else 'C'}: {apart:g} standard deviations"
        axes.text(max(apart, 3.2) / 2 if parts > 1 else 3.2, 0.455 if parts > 1 else 0.415, moves,
                  ha="center" if parts > 1 else "left", fontsize=10)  # fmt: skip
        axes.set_ylim(0, 0.56)
        axes.set_yticks([])
        axes.spines[["left", "right", "top"]].set_visible(False)
        title = "a whole hospital" if parts > 1 else "one of its 15 intermediaries"
        axes.set_title(
            f"{title}:  ε = {epsilon:,.1f} after {ROUNDS} rounds", loc="left", fontsize=12, weight="bold"
        )
    rows[0].text(-1.3, 0.2, "without it", color=WITHOUT, ha="right", fontsize=10)
    rows[0].text(28.7, 0.2, "with it", color=WITH, ha="right", fontsize=10)
    rows[1].text(-1.3, 0.2, "without it", color=WITHOUT, ha="right", fontsize=10)
    rows[1].text(3.4, 0.2, "with it", color=WITH, fontsize=10)
    rows[1].set_xlabel(
        "what one round releases, along the unit's direction, in standard deviations of the noise"
    )
    figure.savefig(Path(__file__).with_name("privacy-units.png"), dpi=150)


if __name__ == "__main__":
    main()
