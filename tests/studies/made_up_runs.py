"""Studies at their smallest, and runs written by hand for claims that must follow in both directions."""

import csv
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from matplotlib.figure import Figure

from silodp.files import to_json
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.studies import output, pictures, study_named
from silodp.studies.claims import Claim
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Cell, CellRun, Plan, Scale, Study

pictures.DPI = 30  # every picture is drawn, and none looked at: coarse ones will do

SIZES = (40, 24, 29, 25, 40, 83)
"""Training images of made-up hospitals."""


EPSILON: dict[str, Any] = {
    "hospital": 20.0, "intermediary": 10.0, "replace_one": {"hospital": 40.0, "intermediary": 20.0},
    "accountant": "exact", "covers_everything": False, "withdrawn": "", "image": None, "amplified": False,
}  # fmt: skip
ROUND: dict[str, Any] = {
    "round": 1, "applied": True, "intermediaries": 1, "intermediaries_capped": False, "clip_bound": 1.0,
    "noise_std": 0.1, "xi": None, "phi": None, "lambda": None, "cosine_std": None, "train_loss": None,
    "epsilon": EPSILON, "validation": {"mean": {}, "hospitals": {}}, "participants": [], "absent": {},
    "ignored": [], "images": 100, "training_seconds": 1.0, "seconds": 1.0, "ledger": "",
}  # fmt: skip
TEST: dict[str, Any] = {
    "round": 1, "mean": {}, "hospitals": {}, "intervals": {"mean": {}, "hospitals": {}},
    "tried": {"A": {"images": 80, "patients": 60}}, "batch": "image", "other": None,
}  # fmt: skip
COHORT = {"cohort": "made-up", "images": 100, "classes_counted": False, "whole_patients": True}
SUMMARY: dict[str, Any] = {
    "experiment": "made-up", "task": "segmentation", "headline": "dice",
    "cohort": COHORT | {"hospitals": 6, "left_out": 0}, "members": 6, "rounds": 1, "parameters": 10_000,
    "epsilon": EPSILON, "delta": 0.1, "image_delta": None,
    "noise_multiplier": {"hospital": 1.0, "intermediary": 1.0}, "intermediaries": 1, "budget": None,
    "stopped": None, "test": {"last": TEST, "best": TEST}, "best_round": 1, "not_covered_by_epsilon": [],
    "wall_seconds": 1.0, "training_seconds": 1.0, "images_per_second": 1.0, "device": "none", "torch": "0",
    "silodp": "0.1.0", "start": None, "ledger": "", "model": "",
}  # fmt: skip
"""What a run writes, to be changed."""


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # removed when the session ends


def shared() -> Path:
    """Where all test files of a session put their studies, so that these find each other's runs."""
    return Path(_temporary().name)


def made_up(folder: Path, cell: Cell, lines: list[dict[str, Any]], **summary: Any) -> CellRun:
    """A finished run with these lines in metrics.jsonl (numbered from 1) and these facts in summary.json."""
    run = folder / "runs" / cell.folder_name
    run.mkdir(parents=True, exist_ok=True)
    records = [ROUND | {"round": number} | line for number, line in enumerate(lines, 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    test = TEST | {"mean": {"dice": 0.5, "iou": 0.4} | dict(summary.pop("test", {}))}
    facts = {
        "rounds": len(lines),
        "intermediaries": records[-1]["intermediaries"],
        "test": {"last": test, "best": test},
        "epsilon": EPSILON | summary.pop("epsilon", {}),
    }
    (run / "summary.json").write_text(to_json(SUMMARY | facts | summary))
    return CellRun(cell, run)


def plan_of(study: Study, *changes: str, scale: Scale = "smoke", **more: Any) -> Plan:
    """The plan of a study, with the settings that were typed."""
    own: Any = {"bases": study.bases, "settable": study.settable, "command": "silodp study"}
    return make_plan(study.task, scale, changes=changes, **own, **more)


def smoke(name: str) -> Path:
    """The results of a study at its smallest, run once a session."""
    study, folder = study_named(name), shared() / f"{name}-smoke"
    if not (folder / "table.md").exists():
        run_study(study, plan_of(study), shared(), jobs=1, device="cpu")
    return folder


def runs_of(name: str) -> list[CellRun]:
    """Its runs, in the order of its cells."""
    study, runs = study_named(name), smoke(name).parent / "runs"
    return [CellRun(cell, runs / cell.folder_name) for cell in study.cells(plan_of(study))]


class Told(NamedTuple):
    """What a study makes of runs: table.md, and its claims."""

    text: str
    claims: Sequence[Claim]

    @property
    def holds(self) -> list[bool | None]:
        return [claim.holds for claim in self.claims]


def tell(study: Study, out: Path, plan: Plan, found: Sequence[CellRun]) -> Told:
    """Writes a study's files.

    Its picture is laid out with all that is in it, once and not four times: nobody reads its svg and its png.
    """

    def lay_out(self: Figure, content: object, *, format: str, **_: object) -> None:
        if format == "svg":
            self.draw_without_rendering()

    with mock.patch.object(Figure, "savefig", lay_out):
        output.write_study(study, out, plan, found)
    return Told((out / "table.md").read_text(), study.results(plan, found).claims)


def npz(path: Path, seed: int = 0, size: int = 32, **more: Any) -> str:
    """A file of 120 images with masks, each of a patient of its own; None leaves an array out."""
    images = np.random.default_rng(seed).integers(0, 255, (120, size, size), dtype=np.uint8)
    known = {"image": images, "mask": (images > 128).astype(np.uint8), "patient": np.arange(120)} | more
    np.savez(path, **{name: array for name, array in known.items() if array is not None})
    return str(path)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fabricate(
    study: Study,
    plan: Plan,
    out: Path,
    metrics: Callable[[Cell], Mapping[str, float]],
    count: Callable[[Cell], int] | None = None,
) -> list[CellRun]:
    """Every cell of a study as if it had run, with these test metrics and, where split, this v."""
    found = []
    for cell in study.cells(plan):
        experiment, split = cell.experiment, cell.columns["intermediaries"] == "with"
        z, rounds = experiment.privacy.noise_multiplier, experiment.rounds
        v = (count(cell) if count else experiment.intermediaries.count) if split else 1
        epsilon: dict[str, Any] = {
            unit: gaussian_epsilon(times * rounds**0.5 / z, 0.1) if z else None
            for unit, times in (("hospital", v), ("intermediary", 1))
        }
        epsilon |= {"covers_everything": False, "accountant": "exact"}
        lines = [{"round": rounds, "intermediaries": v, "clip_bound": 2.0, "noise_std": 0.1}]
        one = made_up(
            out, cell, lines, test=metrics(cell), epsilon=epsilon, rounds=rounds, parameters=1000
        )  # fmt: skip
        parts = ("train", "validation", "test")
        held = [{part: {"images": size, "classes": {}} for part in parts} for size in SIZES]
        shape = {"channels": 1, "size": [8, 8], "storage": "uint8", "target": "mask", "classes": ["prostate"]}
        hospitals = {f"H{SIZES[number]}-{number}": its for number, its in enumerate(held)}
        (one.folder / "cohort.json").write_text(json.dumps(COHORT | shape | {"hospitals": hospitals}))
        found.append(one)
    return found
