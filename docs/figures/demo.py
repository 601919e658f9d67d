"""Draws docs/figures/demo.png from the run folders of `silodp demo`.

python docs/figures/demo.py runs/demo-1
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from safetensors.torch import load_file

from silodp import Experiment
from silodp.cli.demo import demo_experiments
from silodp.cohorts import load_cohort
from silodp.local.trainer import network_input
from silodp.models import build_model
from silodp.privacy.events import UNITS
from silodp.runs.folder import RunFolder
from silodp.runs.schema import Summary, read_as
from silodp.runs.wording import show_epsilon

COLOURS = ("#4d4d4d", "#c8553d", "#2a6f97", "#5b8c3e")
SITES = ("hospital-02", "hospital-05", "hospital-06")


def main() -> None:
    folder = Path(sys.argv[1])
    runs = {title: folder / experiment.name for title, experiment in demo_experiments().items()}
    figure = plt.figure(figsize=(12.5, 4.8), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    axes = left.subplots()
    for (title, run), colour in zip(runs.items(), COLOURS, strict=True):
        epsilon = read_as(Summary, run / "summary.json", "make the demo again")["epsilon"]
        spent = {unit: show_epsilon(epsilon[unit]) for unit in UNITS}
        dice = [line["validation"]["mean"]["dice"] for line in RunFolder(run).metrics()]
        label = f"{title}\nε, a hospital: {spent['hospital']}\nε, an intermediary: {spent['intermediary']}"
        axes.plot(range(1, len(dice) + 1), dice, color=colour, lw=2, label=label)
    axes.set(xlabel="round", ylabel="Dice on validation slices, mean over hospitals", ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    left.legend(
        frameon=False, fontsize=7.5, loc="outside upper center", ncols=4, handlelength=1.2, columnspacing=1
    )
    grid = right.subplots(len(SITES), len(runs))
    for column, (title, run) in enumerate(runs.items()):
        experiment = Experiment.load(run / "experiment.toml")
        model = build_model(experiment.model, 1, 1, 0)
        model.load_state_dict(load_file(run / "model.safetensors"))
        members = {hospital.name: hospital for hospital in load_cohort(experiment.cohort).hospitals}
        for row, site in enumerate(SITES):
            test = members[site].test
            with torch.no_grad():
                predicted = model(network_input(test.images))[:, 0] > 0
            slot, shown = grid[row, column], len(test) // 2
            slot.imshow(test.images[shown, 0], cmap="gray")
            slot.contour(test.targets[shown, 0], [0.5], colors="white", linewidths=1.2)
            if predicted[shown].any():
                slot.contour(predicted[shown].float(), [0.5], colors=COLOURS[column], linewidths=2)
            slot.set_axis_off()
            if row == 0:
                slot.set_title(title, fontsize=9, color=COLOURS[column])
    right.supxlabel("test slices: gland (white), prediction (coloured)", fontsize=9)
    figure.savefig(Path(__file__).with_name("demo.png"), dpi=110)


if __name__ == "__main__":
    main()
