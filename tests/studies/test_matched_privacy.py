"""Every method at the same ε of a hospital: that ε is the same, complete, and what is read from it."""

import csv
import json
import math
from pathlib import Path

import pytest
from made_up_runs import fabricate, shared_folder, write_words

from silodp import InputError
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.studies.matched_privacy import MATCHED, split_counts, verdict
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Cell

PLAN = make_plan("prostate", "smoke")


@pytest.fixture(scope="module")
def smoke_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def folder(smoke_out: Path) -> Path:
    return run_study(MATCHED, PLAN, smoke_out, jobs=1, device="cpu")


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_hospital_is_equally_safe_with_every_method(folder: Path) -> None:
    """z_h = 0.5, two rounds, δ = 0.1: μ = √2/0.5 for the hospital and half of that for one of two parts."""
    rows = [row for row in lines(folder / "results.csv") if float(row["z"])]
    assert {(row["method"], row["v"]) for row in rows} == {
        (method, v) for method in ("DP-FedAvg", "DP-FedAdam", "DP-FedNova", "DP2-RMSProp") for v in ("1", "2")
    }
    for row in rows:
        v = int(row["v"])
        assert float(row["z"]) / v == pytest.approx(0.5)
        hospital, part = (gaussian_epsilon(mu, 0.1) for mu in (math.sqrt(2) / 0.5, math.sqrt(2) / (0.5 * v)))
        assert float(row["epsilon_hospital"]) == pytest.approx(hospital, rel=1e-9)
        assert float(row["epsilon_intermediary"]) == pytest.approx(part, rel=1e-9)
        assert row["covers_everything"] == "True"


def test_noise_on_the_mean_is_that_of_the_hospital_whatever_v_is(folder: Path, smoke_out: Path) -> None:
    """σ = z_h·C/N, and 5 % of the round's privacy goes to the bits of the quantile."""
    for row in lines(folder / "results.csv"):
        if float(row["z"]):
            for line in (smoke_out / "runs" / row["run"] / "metrics.jsonl").read_text().splitlines():
                record = json.loads(line)
                expected = 0.5 / math.sqrt(0.95) * record["clip_bound"] / 6
                assert record["noise_std"] == pytest.approx(expected, rel=1e-3)


def test_hospital_stands_first_and_nothing_is_left_uncovered(folder: Path) -> None:
    text = (folder / "table.md").read_text()
    assert text.index("ε hospital") < text.index("ε intermediary")
    assert "no ε covers these two" not in text
    assert "| ∞ | no privacy | DP-FedAvg | 1 |" in text
    assert (folder / "matched-privacy.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (folder / "matched-privacy.svg").read_text()


def test_run_again_it_trains_nothing_and_writes_the_same(folder: Path, smoke_out: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in (smoke_out / "runs").rglob("*")}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run_study(MATCHED, PLAN, smoke_out, resume=True, jobs=1, device="cpu")
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_v_is_two_and_the_closed_form_within_what_the_smallest_hospital_allows() -> None:
    """U-Net with 484,525 parameters, six hospitals: √(z·√d/6) is 5.9, 7.6, 9.0; 24 images allow 12."""
    small = make_plan("prostate", "small")
    assert [split_counts(small, z) for z in (0.3, 0.5, 0.7)] == [[2, 5], [2, 7], [2, 9]]
    parts = make_plan("prostate", "small", changes=["intermediaries.min_samples=6"])
    assert split_counts(parts, 0.7) == [2, 4]
    with pytest.raises(InputError, match="smallest hospital has too few training images or patients"):
        MATCHED.cells(make_plan("prostate", "small", changes=["intermediaries.min_samples=13"]))


def test_small_scale_ends_in_time() -> None:
    """22 cells of about 70 seconds on two cores are a quarter of an hour."""
    assert len(MATCHED.cells(make_plan("prostate", "small"))) == 4 + 3 * 3 + 3 * 3
    levels = {cell.columns["z_hospital"] for cell in MATCHED.cells(make_plan("prostate", "small"))}
    assert levels == {0.0, 0.3, 0.5, 0.7}


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (0.1, "raises the test Dice in all of 4 pairs: +0.100 in the mean"),
        (-0.1, "raises the test Dice in none of 4 pairs: -0.100 in the mean"),
    ],
)
def test_the_verdict_follows_from_the_numbers(tmp_path: Path, gain: float, words: str) -> None:
    plan = make_plan("prostate", "smoke", seeds=2)

    def metrics(cell: Cell) -> dict[str, float]:
        dice = 0.5 + gain * (cell.columns["intermediaries"] == "with") + 0.01 * int(cell.columns["seed"])
        return {"dice": dice, "iou": dice / 2}

    found = fabricate(MATCHED, plan, tmp_path, metrics)
    said = verdict(plan, found)
    assert words in said
    assert f"with v = {2 if gain > 0 else 1} at ε = 6.8 ({max(0.5, 0.5 + gain) + 0.005:.3f})" in said
    one_helped = [one for one in found if one.cell.columns["method"] != "DP-FedAvg"]
    assert "of 3 pairs" in verdict(plan, one_helped)
    assert f"from {gain:+.3f} to {gain:+.3f}." in said
    assert f"{gain:+.3f}" in write_words(MATCHED, tmp_path, plan, found)


def test_the_verdict_gives_the_range_and_names_what_is_undefined(tmp_path: Path) -> None:
    gains = {"DP-FedAvg": -0.2, "DP-FedAdam": 0.05, "DP-FedNova": 0.0, "DP2-RMSProp": math.nan}

    def metrics(cell: Cell) -> dict[str, float]:
        split = cell.columns["intermediaries"] == "with"
        return {"dice": 0.5 + (gains[str(cell.columns["method"])] if split else 0)}

    said = verdict(PLAN, fabricate(MATCHED, PLAN, tmp_path, metrics))
    assert "in 1 of 3 pairs: -0.050 in the mean, from -0.200 to +0.050." in said
    assert "Undefined: DP2-RMSProp, v = 2, z_h = 0.5." in said
    assert "DP-FedAdam with v = 2 at ε = 6.8 (0.550)" in said
    gains |= dict.fromkeys(gains, math.nan)
    assert "to compare. Undefined: DP-FedAvg" in verdict(PLAN, fabricate(MATCHED, PLAN, tmp_path, metrics))
