"""Appendix: what gradient inversion recovers from the releases of a run, without and with intermediaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from silodp.experiment import Experiment
from silodp.runs.schema import Summary, or_nan
from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import Columns, epsilon, select, spread, table
from silodp.studies.output import Results, run_rows
from silodp.studies.paper import inversion_ssim
from silodp.studies.pictures import WITH, WITHOUT, Level, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study, read_product, train_or_resume

TITLE = "Gradient inversion: what a release gives away"
PRODUCT = "attack/attack.json"
RELEASE, CONTROL, WIDE = "release", "control", "wide"
WIDE_PRODUCT = "attack-wide/attack.json"
# The paper's width, at a size where its second level has fewer positions than channels and can be read.
_WIDE = {"model__features": 32, "cohort__image_size": 32}
_EXPLANATION = (
    "Only where the control works does a low SSIM under noise mean anything. "
    "Without privacy the trained network of the run is attacked, with noise and in the control a network "
    "that is easy to invert, the attacker's best case; with intermediaries all of them hold the images. The "
    "wide U-Net (32 features, 32², untrained) is attacked through the input of a layer that its gradient "
    "reveals; under noise that column is the same attack on the same images: it shows what this attack "
    "cannot do, not what no attack can. ε covers all rounds of the run, the attack one round: its failure "
    "proves nothing, ε does. The paper prints only SSIM."
)
_EFFORT = {"smoke": (1, 20), "small": (1, 500), "paper": (4, 2000)}  # restarts, iterations


def cells(plan: Plan) -> list[Cell]:
    """The DP-FedAvg runs of table 1, each attacked once it is trained."""
    return [
        plan.cell(z, split, seed, work=partial(train_and_attack, effort=_EFFORT[plan.scale]), product=PRODUCT)
        for seed in plan.seeds
        for z in (0.0, *plan.noise)
        for split in ((False, True) if z else (False,))
    ]


def train_and_attack(experiment: Experiment, folder: Path, device: str, effort: tuple[int, int]) -> None:
    """Trains or resumes the run, then attacks at its z.

    One attack is on an untrained U-Net of the paper's width; the other on the easily inverted network and,
    without noise, on the trained network of the run.
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
    """Means over the attacked images of one view.

    Attributes:
        baseline: SSIM of a guess without any information on the images.
    """

    ssim: float
    psnr: float
    baseline: float


def score(one: CellRun, view: str) -> Score | None:
    """The scores of a view; None where the attack did not have it."""
    from silodp.attacks.inversion.result import AttackFile

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


@dataclass(frozen=True)
class Attacked:
    """Runs that differ only in their seeds."""

    z: float
    split: bool
    runs: list[CellRun]

    @property
    def name(self) -> str:
        if not self.z:
            return "without privacy, own network"
        return "DP-FedAvg + intermediaries" if self.split else "DP-FedAvg"


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    groups = [
        Attacked(z, split, runs)
        for z in (0.0, *plan.noise)
        for split in (False, True)
        if (runs := select(found, z=z, intermediaries="with" if split else "without"))
    ]
    none = Score(math.nan, math.nan, math.nan)
    rows = []
    for row, one in zip(run_rows(found), found, strict=True):
        seen, wide = score(one, RELEASE) or none, score(one, WIDE) or none
        scores = {"ssim": seen.ssim, "psnr": seen.psnr, "baseline_ssim": seen.baseline}
        rows.append(row | scores | {"wide_ssim": wide.ssim, "wide_baseline_ssim": wide.baseline})
    return Results(
        TITLE,
        found,
        [_table(groups)],
        claims(groups, found),
        [_EXPLANATION],
        {"ssim": _picture(plan, groups, found)},
        {"results.csv": rows},
    )


def _scores(runs: Sequence[CellRun], view: str = RELEASE) -> list[Score]:
    return [seen for one in runs if (seen := score(one, view))]


def _mean(scores: Sequence[Score]) -> tuple[float, float]:
    """Mean SSIM, and mean SSIM of a blind guess."""
    return mean(one.ssim for one in scores), mean(one.baseline for one in scores)


def _table(groups: Sequence[Attacked]) -> str:
    def paper(group: Attacked) -> str:
        ssim = inversion_ssim(group.z, group.split) if group.z else None
        return f"{ssim:g}" if ssim is not None else "–"

    columns: Columns[Attacked] = (
        ("attacked", lambda group: group.name),
        ("z", lambda group: f"{group.z:g}" if group.z else "–"),
        ("ε hospital", lambda group: epsilon(group.runs, "hospital")),
        ("ε intermediary", lambda group: epsilon(group.runs, "intermediary")),
        ("SSIM", lambda group: spread([one.ssim for one in _scores(group.runs)])),
        ("SSIM of a blind guess", lambda group: spread([one.baseline for one in _scores(group.runs)])),
        ("PSNR in dB", lambda group: spread([one.psnr for one in _scores(group.runs)], 1)),
        ("wide U-Net: SSIM", lambda group: spread([one.ssim for one in _scores(group.runs, WIDE)])),
        ("paper: SSIM", paper),
    )
    return table(groups, columns)


def claims(groups: Sequence[Attacked], found: Sequence[CellRun]) -> list[Claim]:
    """Claims that the attack works at all, then that it recovers something under noise."""

    def works(text: str, scores: Sequence[Score], least: float) -> Claim:
        if not scores:
            return Claim(text, None)
        ssim, guess = _mean(scores)
        return Claim(text, ssim >= least and ssim > guess, f"SSIM {ssim:.3f}, a blind guess {guess:.3f}")

    gains: dict[str, dict[str, float]] = {}
    for group in groups:
        if group.z and (scores := _scores(group.runs)):
            ssim, guess = _mean(scores)
            gains.setdefault(group.name, {})[f"z = {group.z:g}"] = ssim - guess
    return [
        works(
            "Control: from one small batch without noise the attack works (SSIM of 0.5 or more, and above "
            "a blind guess's)",
            _scores(found, CONTROL),
            0.5,
        ),
        *(everywhere(f"{name}: SSIM is above a blind guess's", own) for name, own in gains.items()),
        works(
            "The wide U-Net without noise: SSIM is above a blind guess's",
            _scores(select(found, z=0.0), WIDE),
            -1.0,
        ),
    ]


def _picture(plan: Plan, groups: Sequence[Attacked], found: Sequence[CellRun]) -> Picture:
    lines, levels = [], []
    for split, colour, marker in ((False, WITHOUT, "o"), (True, WITH, "s")):
        mine = [group for group in groups if group.z and group.split == split]
        ours = {group.z: _mean(scores)[0] for group in mine if (scores := _scores(group.runs))}
        paper = {z: inversion_ssim(z, split) for z in plan.noise}
        known = {z: value for z, value in paper.items() if value is not None}
        name = f"{'with' if split else 'without'} intermediaries"
        lines += [
            Line(ours.items(), f"{marker}-", colour, name),
            Line(known.items(), f"{marker}:", colour, f"{name}, the paper", hollow=True),
        ]
    for scores, name, dashes in (
        (_scores(found, CONTROL), "control: one small batch, no noise", "-."),
        (_scores(select(found, z=0.0)), "run without privacy", "--"),
    ):
        if scores:
            levels.append(Level(_mean(scores)[0], name, dashes))
    if every := _scores(found):
        levels.append(Level(_mean(every)[1], "a blind guess", ":"))
    lowest = min([0.0, *(y for line in lines for _, y in line.points), *(level.y for level in levels)])
    panel = Panel(
        "noise multiplier z (more noise →)",
        "SSIM of reconstruction and image\n(1 = the image itself, lower is more private)",
        lines,
        levels,
        title=TITLE,
        ticks=plan.noise,
        y_range=(lowest, 1),
    )
    return Picture([panel], (8, 4.4))


ATTACK = Study(
    "appendix-attack", "Appendix: gradient inversion, scored by SSIM", "prostate", cells, results, runs=7
)
