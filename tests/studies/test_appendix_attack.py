"""The appendix' table of reconstructed images: what is attacked, and what is read from the scores."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_runs import fabricate, shared_folder

from silodp.studies.appendix_attack import ATTACK, sentences
from silodp.studies.paper import inversion_ssim
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Cell, Found
from silodp.studies.table1 import PROSTATE

PLAN = make_plan("prostate", "small")


def attacked(
    out: Path, ssim: Callable[[Cell], float], control: float | None = 0.7, baseline: float = 0.2
) -> list[Found]:
    """Runs with these scores; a control where there is one."""
    found = fabricate(ATTACK, PLAN, out, lambda _: {"dice": 0.5, "iou": 0.3}, lambda _: 7)
    for one in found:
        z, split = one.cell.columns["z"], one.cell.columns["intermediaries"] == "with"
        name = ("intermediaries" if split else "DP-FedAvg") if z else "own network"
        views = {name: {"ssim": ssim(one.cell), "psnr": 11.5, "baseline_ssim": baseline, "images": {}}}
        if control is not None:
            views["control"] = {"ssim": control, "psnr": 20.0, "baseline_ssim": baseline, "images": {}}
        about = {"experiment": "", "cohort": "", "victim": "", "settings": {}}
        about |= {"noise_multiplier": z, "intermediaries": 7}
        (one.folder / "attack").mkdir(exist_ok=True)
        (one.folder / "attack" / "attack.json").write_text(json.dumps(about | {"views": views}))
    return found


def test_it_attacks_the_runs_of_table_1() -> None:
    ours = {cell.folder_name for cell in ATTACK.cells(PLAN)}
    assert len(ours) == 1 + 2 * 3
    assert ours < {cell.folder_name for cell in PROSTATE.cells(PLAN)}


def test_the_papers_numbers() -> None:
    assert [inversion_ssim(z, False) for z in (0.3, 0.5, 0.7)] == [0.05, 0.01, 0.007]
    assert [inversion_ssim(z, True) for z in (0.3, 0.5, 0.7)] == [0.01, 0.01, 0.01]
    assert inversion_ssim(0.9, True) is None


def test_the_table_has_both_epsilons_the_blind_guess_and_the_paper(tmp_path: Path) -> None:
    """36 rounds at z = 0.5: ε = 86.4, and 3,634.7 for a hospital of seven intermediaries."""
    found = attacked(tmp_path / "runs", lambda cell: 0.3 - 0.1 * float(cell.columns["z"]))
    ATTACK.write(tmp_path, PLAN, found)
    text = (tmp_path / "table.md").read_text()
    assert "| DP-FedAvg + intermediaries | 0.5 | 3,634.7 | 86.4 | 0.250 | 0.200 | 11.5 | – | 0.01 |" in text
    assert "| without privacy, own network | – | ∞ | ∞ | 0.300 | 0.200 | 11.5 | – | – |" in text
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ssim"]) for row in rows] == pytest.approx([0.3, 0.27, 0.27, 0.25, 0.25, 0.23, 0.23])
    assert (tmp_path / "ssim.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("control", "words"),
    [(0.7, "an attack which can succeed"), (0.3, "means nothing"), (None, "There is no control")],
)
def test_a_low_score_counts_only_where_the_control_succeeds(
    tmp_path: Path, control: float | None, words: str
) -> None:
    first = sentences(PLAN, attacked(tmp_path, lambda _: 0.2, control))[0]
    assert words in first
    assert control is None or f"SSIM {control:.3f} (a blind guess 0.200)" in first


def test_a_control_no_better_than_a_blind_guess_is_none(tmp_path: Path) -> None:
    assert "means nothing" in sentences(PLAN, attacked(tmp_path, lambda _: 0.2, 0.6, baseline=0.65))[0]


@pytest.mark.parametrize(("ssim", "gain"), [(0.25, "+0.050"), (0.15, "-0.050")])
def test_what_noise_leaves_is_counted_from_the_blind_guess(tmp_path: Path, ssim: float, gain: str) -> None:
    said = sentences(PLAN, attacked(tmp_path, lambda _: ssim))[1]
    assert f"DP-FedAvg + intermediaries at z = 0.5 {gain} (ε = 3,634.7 for a hospital)" in said


def test_the_study_trains_then_attacks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """End to end at smoke scale: every run has the views that its row needs."""
    plan, shared = make_plan("prostate", "smoke"), shared_folder(tmp_path_factory)
    out = run_study(ATTACK, plan, shared, jobs=1, device="cpu")
    views = {
        path.parent.parent.name.rsplit("-", 1)[0]: set(json.loads(path.read_text())["views"])
        for path in shared.glob("runs/*/attack/attack.json")
    }
    assert views == {
        "fedavg-no-privacy-seed0": {"control", "own network"},
        "fedavg-z0.5-seed0": {"DP-FedAvg"},
        "fedavg-z0.5-split-seed0": {"intermediaries"},
    }
    wide = {
        path.parent.parent.name.rsplit("-", 1)[0]: set(json.loads(path.read_text())["views"])
        for path in shared.glob("runs/*/attack-wide/attack.json")
    }
    assert wide == {
        "fedavg-no-privacy-seed0": {"own network"},
        "fedavg-z0.5-seed0": {"own DP-FedAvg"},
        "fedavg-z0.5-split-seed0": {"own intermediaries"},
    }
    assert "| DP-FedAvg + intermediaries | 0.5 |" in (out / "table.md").read_text()
