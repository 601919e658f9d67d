"""Appendix: what gradient inversion recovers from the releases of a run, without and with intermediaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
_VIEWS = {
    RELEASE: (("DP-FedAvg", "intermediaries", "own network"), PRODUCT),
    CONTROL: (("control",), PRODUCT),
    WIDE: (("own DP-FedAvg", "own intermediaries", "own network"), "attack-wide/attack.json"),
}
"""What a view may be called, and its file."""
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
        for z, split in plan.ways
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


def scores(runs: Sequence[CellRun], view: str = RELEASE) -> list[dict[str, float]]:
    """SSIM, a blind guess's SSIM and PSNR of each run that has the view: means over its images."""
    from silodp.attacks.inversion.result import AttackFile

    names, product = _VIEWS[view]
    paths = [path for one in runs if (path := one.folder / product).is_file()]
    views = [read_product(AttackFile, path)["views"] for path in paths]
    found = [seen[name] for seen in views for name in names if name in seen]
    return [
        {"ssim": or_nan(one["ssim"]), "psnr": or_nan(one["psnr"]), "baseline": or_nan(one["baseline_ssim"])}
        for one in found
    ]


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
        for z, split in plan.ways
        if (runs := select(found, z=z, intermediaries="with" if split else "without"))
    ]
    rows = []
    for row, one in zip(run_rows(found), found, strict=True):
        seen, wide = (next(iter(scores([one], view)), {}) for view in (RELEASE, WIDE))
        own = {"ssim": seen.get("ssim"), "psnr": seen.get("psnr"), "baseline_ssim": seen.get("baseline")}
        rows.append(row | own | {"wide_ssim": wide.get("ssim"), "wide_baseline_ssim": wide.get("baseline")})
    return Results(
        TITLE,
        found,
        [_table(groups)],
        claims(groups, found),
        [_EXPLANATION],
        {"ssim": _picture(plan, groups, found)},
        {"results.csv": rows},
    )


def _mean(found: Sequence[dict[str, float]], key: str) -> float:
    return mean(one[key] for one in found)


def _table(groups: Sequence[Attacked]) -> str:
    def show(key: str, view: str = RELEASE, digits: int = 3) -> Callable[[Attacked], str]:
        return lambda group: spread([one[key] for one in scores(group.runs, view)], digits)

    columns: Columns[Attacked] = (
        ("attacked", lambda group: group.name),
        ("z", lambda group: f"{group.z:g}" if group.z else "–"),
        ("ε hospital", lambda group: epsilon(group.runs, "hospital")),
        ("ε intermediary", lambda group: epsilon(group.runs, "intermediary")),
        ("SSIM", show("ssim")),
        ("SSIM of a blind guess", show("baseline")),
        ("PSNR in dB", show("psnr", digits=1)),
        ("wide U-Net: SSIM", show("ssim", WIDE)),
        ("paper: SSIM", lambda group: f"{inversion_ssim(group.z, group.split):g}" if group.z else "–"),
    )
    return table(groups, columns)


def claims(groups: Sequence[Attacked], found: Sequence[CellRun]) -> list[Claim]:
    """Claims that the attack works at all, then that it recovers something under noise."""

    def works(text: str, seen: Sequence[dict[str, float]], least: float) -> Claim:
        if not seen:
            return Claim(text, None)
        ssim, guess = _mean(seen, "ssim"), _mean(seen, "baseline")
        return Claim(text, ssim >= least and ssim > guess, f"SSIM {ssim:.3f}, a blind guess {guess:.3f}")

    gains: dict[str, dict[str, float]] = {}
    for group in groups:
        if group.z and (seen := scores(group.runs)):
            gain = _mean(seen, "ssim") - _mean(seen, "baseline")
            gains.setdefault(group.name, {})[f"z = {group.z:g}"] = gain
    return [
        works(
            "Control: from one small batch without noise the attack works (SSIM of 0.5 or more, and above "
            "a blind guess's)",
            scores(found, CONTROL),
            0.5,
        ),
        *(everywhere(f"{name}: SSIM is above a blind guess's", own) for name, own in gains.items()),
        works(
            "The wide U-Net without noise: SSIM is above a blind guess's",
            scores(select(found, z=0.0), WIDE),
            -1.0,
        ),
    ]


def _picture(plan: Plan, groups: Sequence[Attacked], found: Sequence[CellRun]) -> Picture:
    lines, levels = [], []
    for split, colour, marker in ((False, WITHOUT, "o"), (True, WITH, "s")):
        mine = [group for group in groups if group.z and group.split == split]
        ours = [(group.z, one["ssim"]) for group in mine for one in scores(group.runs)]
        paper = [(z, inversion_ssim(z, split)) for z in plan.noise]
        name = f"{'with' if split else 'without'} intermediaries"
        lines += [
            Line(ours, f"{marker}-", colour, name),
            Line(paper, f"{marker}:", colour, f"{name}, the paper", hollow=True),
        ]
    for seen, key, name, dashes in (
        (scores(found, CONTROL), "ssim", "control: one small batch, no noise", "-."),
        (scores(select(found, z=0.0)), "ssim", "run without privacy", "--"),
        (scores(found), "baseline", "a blind guess", ":"),
    ):
        if seen:
            levels.append(Level(_mean(seen, key), name, dashes))
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
