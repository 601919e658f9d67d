"""Every method at the same ε of a hospital: that ε is the same, complete, and what is read from it."""

import math
from pathlib import Path

import pytest
from made_up_runs import fabricate, rows, runs_of, smoke, tell

from silodp import InputError
from silodp.studies.matched_privacy import MATCHED, split_counts
from silodp.studies.planning import make_plan
from silodp.studies.study import Cell

PLAN = make_plan("prostate", "smoke")


def test_a_hospital_is_equally_safe_with_every_method() -> None:
    """z/v is the hospital's own z_h = 0.5; that ε follows from z and v, another test has for every study."""
    found = rows(smoke("matched-privacy") / "results.csv")
    private = [row for row in found if float(row["z"])]
    assert {(row["method"], row["v"]) for row in private} == {
        (method, v) for method in ("DP-FedAvg", "DP-FedAdam", "DP-FedNova", "DP2-RMSProp") for v in ("1", "2")
    }
    for row in private:
        v = int(row["v"])
        assert float(row["z"]) / v == pytest.approx(0.5)
        assert row["covers_everything"] == "True"


def test_noise_on_the_mean_is_that_of_the_hospital_whatever_v_is() -> None:
    """σ = z_h·C/N, and 5 % of the round's privacy goes to the bits of the quantile."""
    for one in runs_of("matched-privacy"):
        for line in one.rounds if one.cell.columns["z"] else []:
            expected = 0.5 / math.sqrt(0.95) * line["clip_bound"] / 6
            assert line["noise_std"] == pytest.approx(expected, rel=1e-3)


def test_nothing_is_left_uncovered() -> None:
    text = (smoke("matched-privacy") / "table.md").read_text()
    assert "no ε covers these two" not in text
    assert "| ∞ | no privacy | DP-FedAvg | 1 |" in text


def test_v_is_two_and_the_closed_form_within_what_the_smallest_hospital_allows() -> None:
    """U-Net with 484,525 parameters, six hospitals: √(z·√d/6) is 5.9, 7.6, 9.0; 24 images allow 12."""
    small = make_plan("prostate", "small")
    assert [split_counts(small, z) for z in (0.3, 0.5, 0.7)] == [[2, 5], [2, 7], [2, 9]]
    parts = make_plan("prostate", "small", changes=["intermediaries.min_samples=6"])
    assert split_counts(parts, 0.7) == [2, 4]
    with pytest.raises(InputError, match="smallest hospital has too few training images or patients"):
        MATCHED.cells(make_plan("prostate", "small", changes=["intermediaries.min_samples=13"]))


@pytest.mark.parametrize("gain", [0.1, -0.1])
def test_claims_follow_from_the_numbers(tmp_path: Path, gain: float) -> None:
    plan = make_plan("prostate", "smoke", seeds=2)

    def metrics(cell: Cell) -> dict[str, float]:
        dice = 0.5 + gain * (cell.columns["intermediaries"] == "with") + 0.01 * int(cell.columns["seed"])
        return {"dice": dice, "iou": dice / 2}

    found = fabricate(MATCHED, plan, tmp_path, metrics)
    text, claims = told = tell(MATCHED, tmp_path, plan, found)
    assert told.holds == [gain > 0] * 5
    assert claims[0].measured.endswith(f"{gain:+.3f} at z_h = 0.5, v = 2")
    best = f"with v = {2 if gain > 0 else 1} at ε = 6.8 ({max(0.5, 0.5 + gain) + 0.005:.3f})"
    assert claims[-1].measured.endswith(best)
    assert f"| {gain:+.3f} |" in text
    others = [one for one in found if one.cell.columns["method"] != "DP-FedAvg"]
    assert MATCHED.results(plan, others).claims[0].holds is None


def test_what_is_undefined_is_named(tmp_path: Path) -> None:
    gains = {"DP-FedAvg": -0.2, "DP-FedAdam": 0.05, "DP-FedNova": 0.0, "DP2-RMSProp": math.nan}

    def metrics(cell: Cell) -> dict[str, float]:
        split = cell.columns["intermediaries"] == "with"
        return {"dice": 0.5 + (gains[str(cell.columns["method"])] if split else 0)}

    claims = MATCHED.results(PLAN, fabricate(MATCHED, PLAN, tmp_path, metrics)).claims
    assert [claim.holds for claim in claims] == [False, True, False, None, True]
    assert claims[3].measured == "0 of 0: undefined at z_h = 0.5, v = 2"
    assert claims[4].measured == "DP-FedAdam with v = 2 at ε = 6.8 (0.550)"
