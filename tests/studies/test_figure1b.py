"""Figure 1(b): the fits against SciPy, the points against the runs' own files, the claims by hand."""

import math
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from made_up_runs import Told, made_up, plan_of, rows, runs_of, smoke, tell
from scipy.optimize import curve_fit
from scipy.stats import linregress

from silodp.studies.claims import Claim
from silodp.studies.figure1b import STUDY
from silodp.studies.laws import fixed_power, free_power
from silodp.studies.planning import make_plan

V = [1, 2, 3, 4, 6, 8, 10]
Y = [9.1, 4.0, 3.3, 2.2, 1.9, 1.2, 1.0]


def test_points_are_those_of_the_runs() -> None:
    found, folder = runs_of("figure1b"), smoke("figure1b")
    assert [one.rounds[0]["intermediaries"] for one in found] == [1, 2]
    for one, row in zip(found, rows(folder / "results.csv"), strict=True):
        assert len(one.rounds) == 2
        for key in ("xi", "phi", "lambda"):
            assert float(row[f"{key}_round_1"]) == one.rounds[0][key]
            assert float(row[f"{key}_mean"]) == pytest.approx(mean(line[key] for line in one.rounds))
    lines = rows(folder / "rounds.csv")
    assert [float(line["xi"]) for line in lines] == [line["xi"] for one in found for line in one.rounds]
    assert [line["round"] for line in lines] == ["1", "2"] * 2
    text = (folder / "table.md").read_text()
    assert "C is the exact median of the norms: no ε covers it." in text  # v is fixed
    assert "ξ, φ, λ and cosines are un-noised, recorded for study: no ε covers them." in text


def test_the_ratio_is_the_closed_form() -> None:
    """λ = z√d/(Nv)² where all norms are C; their mean is within a factor of two of C, their median."""
    for one in runs_of("figure1b"):
        v, line = one.rounds[0]["intermediaries"], one.rounds[0]
        expected = 0.5 * math.sqrt(one.summary["parameters"]) / (6 * v) ** 2
        assert 1 / 2 < line["lambda"] / expected < 2
        assert line["lambda"] == pytest.approx(line["xi"] / line["phi"])
    fits = rows(smoke("figure1b") / "fits.csv")
    fit = next(row for row in fits if row["quantity"] == "lambda")
    assert float(fit["free_power"]) == pytest.approx(-2, abs=0.5)


def test_round_one_starts_from_the_model_of_every_run() -> None:
    """DP-FedAvg of table 1, whose v is 1, measures the same in its first round."""
    table1 = next(one for one in runs_of("figure2a") if not one.cell.columns["variant"])
    assert table1.cell.columns["intermediaries"] == "without"
    assert table1.rounds[0]["xi"] == runs_of("figure1b")[0].rounds[0]["xi"]


def test_v_is_what_the_smallest_hospital_allows(tmp_path: Path) -> None:
    """Five images are two intermediaries of two."""
    plan = plan_of(STUDY)
    assert min(plan.training_sizes) == 5
    cells = STUDY.cells(plan)
    assert [cell.experiment.intermediaries.count for cell in cells] == [1, 2]
    found = [
        made_up(tmp_path, cell, [{"xi": 2.0 / v, "phi": 2.0 + v, "lambda": 1.0 / v}])
        for v, cell in enumerate(cells, 1)
    ]
    text, _ = tell(STUDY, tmp_path, plan, found)
    assert "too few images for v = 3." in text
    assert "| round 1: ξ = ξ₁/v | yes | R² = 1.00, best power v^−1.00 |" in text
    assert "| round 1 | φ = φ₁·v | -0.60 | – | 0.42 | – |" in text  # a = 11/5: 1 − 0.8/0.5
    more = STUDY.cells(plan_of(STUDY, "cohort.slices=72"))
    assert [cell.experiment.intermediaries.count for cell in more] == [1, 2, 3]


@pytest.mark.parametrize("power", [-1, 1, -2])
def test_a_fixed_power_is_fitted_as_scipy_does(power: int) -> None:
    v, y = np.array(V, dtype=float), np.array(Y)
    (factor,), _ = curve_fit(lambda v, a: a * v**power, v, y)
    ours = fixed_power(V, Y, power)
    assert ours.factor == pytest.approx(factor, rel=1e-6)
    assert ours.r2 == pytest.approx(1 - ((y - factor * v**power) ** 2).sum() / (len(y) * y.var()), rel=1e-6)
    line, ours = linregress(v**power, y), fixed_power(V, Y, power, constant=True)
    assert (ours.factor, ours.constant) == pytest.approx((line.slope, line.intercept))
    assert ours.r2 == pytest.approx(line.rvalue**2)
    assert ours(2.0) == pytest.approx(line.slope * 2.0**power + line.intercept)


def test_the_free_power_is_a_line_through_the_logarithms() -> None:
    line, ours = linregress(np.log(V), np.log(Y)), free_power(V, Y)
    assert (ours.power, ours.r2) == pytest.approx((line.slope, line.rvalue**2))
    assert ours.factor == pytest.approx(math.exp(line.intercept))
    exact = free_power(V, [3 * v**-1.5 for v in V])
    assert (exact.power, exact.factor, exact.r2) == pytest.approx((-1.5, 3, 1))


def test_a_law_that_fits_worse_than_the_mean_has_a_negative_r2() -> None:
    assert fixed_power([1, 2, 3], [3, 2, 1], 1).r2 == pytest.approx(1 - (14 - 100 / 14) / 2)
    assert fixed_power([1, 2, 3], [3, 2, 1], 1).r2 < 0


def test_too_few_v_have_no_r2() -> None:
    assert math.isnan(fixed_power([2, 2], [1, 3], -1).r2)
    assert math.isnan(fixed_power([1, 2, 2], [1, 3, 4], -1, constant=True).r2)
    assert math.isnan(free_power([1, 2, 2], [1, 3, 4]).r2)
    assert math.isnan(fixed_power([1, 2, 3], [4, 4, 4], -1, constant=True).r2)
    assert math.isnan(free_power([], []).power)


def laws(folder: Path, xi: float, phi: float) -> Told:
    """Runs in which ξ and φ are exact powers of v in round 1, and ξ is twice that in round 2."""
    plan = make_plan("prostate", "small")
    found = []
    for cell in STUDY.cells(plan):
        v = cell.experiment.intermediaries.count
        first = {"intermediaries": v, "xi": 8.0 * v**xi, "phi": 2.0 * v**phi, "lambda": 4.0 * v ** (xi - phi)}
        found.append(made_up(folder, cell, [first, first | {"xi": 16.0 * v**xi}]))
    assert [one.rounds[0]["intermediaries"] for one in found] == V
    return tell(STUDY, folder, plan, found)


def test_the_papers_laws_hold_where_they_do(tmp_path: Path) -> None:
    text, _ = told = laws(tmp_path, -1, 1)
    assert told.holds == [True] * 6
    assert "| mean over the rounds: λ = λ₁/v² | yes | R² = 1.00, best power v^−2.00 |" in text
    assert "| 2 | 20.0 | 10.0 | 4.000 | 4.000 | 1.000 | 6.000 | 4.000 | 1.000 |" in text


def test_the_papers_laws_fail_where_they_do(tmp_path: Path) -> None:
    """Updates that are orthogonal: s = ½; then updates that agree: s = 1. λ's law needs neither."""
    text, _ = told = laws(tmp_path / "half", -1.5, 0.5)
    assert "| round 1: ξ = ξ₁/v | no | R² = 0.92, best power v^−1.50 |" in text  # by its R² alone it would
    assert "| round 1 | φ = φ₁·v | 0.48 | 0.98 | 0.50 | 1.00 |" in text
    assert told.holds[:3] == laws(tmp_path / "one", -2, 0.01).holds[:3] == [False, False, True]


def test_a_law_without_change_over_v_cannot_be_tested(tmp_path: Path) -> None:
    plan = make_plan("prostate", "small")
    found = [
        made_up(tmp_path, cell, [{"xi": value, "phi": value, "lambda": 1.0}])
        for cell, value in zip(STUDY.cells(plan), [1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0], strict=True)
    ]
    claims = STUDY.results(plan, found).claims
    assert claims[2] == Claim("round 1: λ = λ₁/v²", None)
    assert claims[0].holds is False
