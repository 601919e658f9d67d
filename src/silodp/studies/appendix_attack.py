"""Appendix: what gradient inversion recovers from what a run releases, without and with intermediaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from silodp.experiment import Experiment
from silodp.runs.schema import Summary, or_nan
from silodp.studies.output import (
    WITH,
    WITHOUT,
    epsilons,
    run_rows,
    select,
    spread,
    write_figure,
    write_markdown,
)
from silodp.studies.paper import inversion_ssim
from silodp.studies.study import Cell, Found, Plan, Study, read_product, train_or_resume
from silodp.tables import markdown_table, write_csv

TITLE = "Gradient inversion: what a release gives away"
PRODUCT = "attack/attack.json"
RELEASE, CONTROL, WIDE = "release", "control", "wide"
WIDE_PRODUCT = "attack-wide/attack.json"
# The paper's width, at a size where its second level has fewer positions than channels and can be read.
_WIDE = {"model__features": 32, "cohort__image_size": 32}
_EFFORT = {"smoke": (1, 20), "small": (1, 500), "paper": (4, 2000)}  # restarts, iterations


def cells(plan: Plan) -> list[Cell]:
    """Table 1's runs of DP-FedAvg, each attacked once it is trained."""
    return [
        plan.cell(z, split, seed, work=partial(train_and_attack, effort=_EFFORT[plan.scale]), product=PRODUCT)
        for seed in plan.seeds
        for z in (0.0, *plan.noise)
        for split in ((False, True) if z else (False,))
    ]


def train_and_attack(experiment: Experiment, folder: Path, device: str, effort: tuple[int, int]) -> None:
    """The run, or the rest of it, then both attacks at its z.

    One is on an untrained U-Net of the paper's width; the other on the open network, and without noise on the
    run's own trained one, too.
    """
    from silodp.attacks.inversion import AttackSettings, Search, invert
    from silodp.attacks.inversion.output import write_attack

    train_or_resume(experiment, folder, device)
    v = read_product(Summary, folder / "summary.json")["intermediaries"]
    noised = "DP-FedAvg" if v == 1 else "intermediaries"
    search = Search(*effort)
    wide = experiment.change(**_WIDE, intermediaries__rule="fixed", intermediaries__count=v)
    seen = AttackSettings(views=(f"own {noised}" if experiment.is_private else "own network",), search=search)
    write_attack(invert(wide, device=device, settings=seen), folder / "attack-wide")
    views = (noised,) if experiment.is_private else ("control", "own network")
    seen = AttackSettings(views=views, search=search)
    write_attack(invert(experiment, run=folder, device=device, settings=seen), folder / "attack")


@dataclass(frozen=True)
class Score:
    """Mean over the attacked images of one view.

    Attributes:
        baseline: SSIM of a guess that has seen nothing of the images.
    """

    ssim: float
    psnr: float
    baseline: float


def score(one: Found, view: str) -> Score | None:
    """What an attack reached; None where it had no such view."""
    from silodp.attacks.inversion.attack import AttackFile

    path = one.folder / (WIDE_PRODUCT if view == WIDE else PRODUCT)
    if view == WIDE and not path.is_file():
        return None
    views = read_product(AttackFile, path)["views"]
    names = {
        CONTROL: ("control",),
        RELEASE: ("DP-FedAvg", "intermediaries", "own network"),
        WIDE: ("own DP-FedAvg", "own intermediaries", "own network"),
    }[view]
    found = next((views[name] for name in names if name in views), None)
    if found is None:
        return None
    return Score(or_nan(found["ssim"]), or_nan(found["psnr"]), or_nan(found["baseline_ssim"]))


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    rows = []
    for row, one in zip(run_rows(found), found, strict=True):
        seen, wide = score(one, RELEASE), score(one, WIDE)
        rows.append(
            row
            | {
                "ssim": seen.ssim if seen else math.nan,
                "psnr": seen.psnr if seen else math.nan,
                "baseline_ssim": seen.baseline if seen else math.nan,
                "wide_ssim": wide.ssim if wide else math.nan,
                "wide_baseline_ssim": wide.baseline if wide else math.nan,
            }
        )
    write_csv(out / "results.csv", rows)
    write_markdown(out, TITLE, plan, found, [_table(plan, found), *sentences(plan, found)])
    _picture(out, plan, found)


def _groups(plan: Plan, found: Sequence[Found]) -> list[tuple[float, bool, list[Found]]]:
    return [
        (z, split, runs)
        for z in (0.0, *plan.noise)
        for split in ((False, True) if z else (False,))
        if (runs := select(found, z=z, intermediaries="with" if split else "without"))
    ]


def _scores(runs: Sequence[Found], view: str = RELEASE) -> list[Score]:
    return [seen for one in runs if (seen := score(one, view))]


def _name(z: float, split: bool) -> str:
    return ("DP-FedAvg + intermediaries" if split else "DP-FedAvg") if z else "without privacy, own network"


def _table(plan: Plan, found: Sequence[Found]) -> str:
    header = ["attacked", "z", "ε hospital", "ε intermediary", "SSIM", "SSIM of a blind guess", "PSNR in dB"]
    rows = []
    for z, split, runs in _groups(plan, found):
        scores, wide = _scores(runs), _scores(runs, WIDE)
        paper = inversion_ssim(z, split) if z else None
        rows.append(
            [
                _name(z, split),
                f"{z:g}" if z else "–",
                *epsilons(runs),
                spread([one.ssim for one in scores]),
                spread([one.baseline for one in scores]),
                spread([one.psnr for one in scores], 1),
                spread([one.ssim for one in wide]) if wide else "–",
                f"{paper:g}" if paper is not None else "–",
            ]
        )
    return markdown_table([*header, "wide U-Net: SSIM", "paper: SSIM"], rows)


def sentences(plan: Plan, found: Sequence[Found]) -> list[str]:
    """What the numbers mean: first whether the attack works at all, then what it sees under noise."""
    control = _scores(found, CONTROL)
    said = []
    if control:
        reached = mean(one.ssim for one in control)
        guess = mean(one.baseline for one in control)
        works = reached >= 0.5 and reached > guess
        said.append(
            f"Control: from the un-noised update of one small batch the attack reaches SSIM {reached:.3f} "
            f"(a blind guess {guess:.3f}). "
            + (
                "It works where it should, so a low SSIM under noise is that of an attack which can succeed."
                if works
                else "It does not work even there, so a low SSIM under noise means nothing."
            )
        )
    else:
        said.append("There is no control, so a low SSIM under noise means nothing by itself.")
    more = []
    for z, split, runs in _groups(plan, found):
        scores = _scores(runs)
        if z and scores:
            gain = mean(one.ssim - one.baseline for one in scores)
            more.append(
                f"{_name(z, split)} at z = {z:g} {gain:+.3f} (ε = {epsilons(runs)[0]} for a hospital)"
            )
    if more:
        said.append(f"SSIM beyond a blind guess: {'; '.join(more)}.")
    if wide := _scores(select(found, z=0.0), WIDE):
        reached, guess = mean(one.ssim for one in wide), mean(one.baseline for one in wide)
        said.append(
            f"On a U-Net of the paper's width (32 features, 32², untrained) it reaches {reached:.3f} without "
            f"noise (a blind guess {guess:.3f}), from the input of a layer that its gradient gives away; "
            "under noise that column is the same attack on the same images, and shows what this attack "
            "cannot, not what none can."
        )
    said.append(
        "Without privacy the run's own trained network is attacked, with noise and in the control one that "
        "gradients see through, the attacker's best case; with intermediaries all of them hold the images. "
        "ε is of all rounds of the run, the attack is one attack on one round: that it fails proves nothing, "
        "ε does. The paper prints SSIM alone."
    )
    return said


def _picture(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.4), layout="constrained")
    place = figure.subplots()
    for split, colour, marker in ((False, WITHOUT, "o"), (True, WITH, "s")):
        groups = {z: _scores(runs) for z, own, runs in _groups(plan, found) if z and own == split}
        levels = [z for z, scores in groups.items() if scores]
        means = [mean(one.ssim for one in groups[z]) for z in levels]
        name = f"{'with' if split else 'without'} intermediaries"
        place.plot(levels, means, f"{marker}-", color=colour, label=name)
        paper = {z: inversion_ssim(z, split) for z in plan.noise}
        known = {z: value for z, value in paper.items() if value is not None}
        (line,) = place.plot(list(known), list(known.values()), f"{marker}:", color=colour)
        line.set(markerfacecolor="none", label=f"{name}, the paper")
    plain = _scores(select(found, z=0.0))
    for scores, name, dashes in (
        (_scores(found, CONTROL), "control: one small batch, no noise", "-."),
        (plain, "run without privacy", "--"),
    ):
        if scores:
            place.axhline(
                mean(one.ssim for one in scores), color="#555555", linewidth=1, linestyle=dashes, label=name
            )
    if every := _scores(found):
        guess = mean(one.baseline for one in every)
        place.axhline(guess, color="#999999", linewidth=1, linestyle=":", label="a blind guess")
    place.set(title=TITLE, xlabel="noise multiplier z (more noise →)", xticks=plan.noise)
    place.set_ylim(min(0.0, place.get_ylim()[0]), 1)
    place.set_ylabel("SSIM of reconstruction and image\n(1 = the image itself, lower is more private)")
    place.grid(alpha=0.3)
    handles, labels = place.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize="small")
    write_figure(out, "ssim", figure)


ATTACK = Study(
    "appendix-attack", "Appendix: gradient inversion, scored by SSIM", "prostate", cells, write, runs=7
)
