"""Figure 1(b) at its smallest: the fits against SciPy, the points against the runs' own files."""

import math
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from made_up_runs import made_up, rows, trained, write_words
from scipy.optimize import curve_fit
from scipy.stats import linregress

from silodp import InputError
from silodp.studies.figure1b import STUDY
from silodp.studies.laws import fixed_power, free_power
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Found, train_or_resume

V = [1, 2, 3, 4, 6, 8, 10]
Y = [9.1, 4.0, 3.3, 2.2, 1.9, 1.2, 1.0]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With 72 training images the smallest hospital has enough for v = 3."""
    out = tmp_path_factory.mktemp("figure1b")
    run_study(STUDY, make_plan("prostate", "smoke", changes=["cohort.slices=72"]), out, jobs=1, device="cpu")
    return out


def runs(out: Path) -> list[Found]:
    cells = STUDY.cells(make_plan("prostate", "smoke", changes=["cohort.slices=72"]))
    return [Found(cell, out / "runs" / cell.folder_name) for cell in cells]


def test_points_are_those_of_the_runs(out: Path) -> None:
    found, results = runs(out), rows(out / "figure1b-smoke" / "results.csv")
    assert [one.rounds[0]["intermediaries"] for one in found] == [1, 2, 3]
    for one, row in zip(found, results, strict=True):
        assert len(one.rounds) == 2
        for key in ("xi", "phi", "lambda"):
            assert float(row[f"{key}_round_1"]) == one.rounds[0][key]
            assert float(row[f"{key}_mean"]) == pytest.approx(mean(line[key] for line in one.rounds))
    lines = rows(out / "figure1b-smoke" / "rounds.csv")
    assert [float(line["xi"]) for line in lines] == [line["xi"] for one in found for line in one.rounds]
    assert [line["round"] for line in lines] == ["1", "2"] * 3


def test_the_ratio_is_the_closed_form(out: Path) -> None:
    """λ = z√d/(Nv)² where all norms are C; their mean is within a factor of two of C, their median."""
    for one in runs(out):
        v, line = one.rounds[0]["intermediaries"], one.rounds[0]
        expected = 0.5 * math.sqrt(one.summary["parameters"]) / (6 * v) ** 2
        assert 1 / 2 < line["lambda"] / expected < 2
        assert line["lambda"] == pytest.approx(line["xi"] / line["phi"])
    fit = next(row for row in rows(out / "figure1b-smoke" / "fits.csv") if row["quantity"] == "lambda")
    assert float(fit["free_power"]) == pytest.approx(-2, abs=0.5)


def test_round_one_starts_from_the_model_of_every_run(out: Path, tmp_path: Path) -> None:
    """DP-FedAvg of table 1, whose v is 1, measures the same in its first round."""
    cell = make_plan("prostate", "smoke", changes=["cohort.slices=72", "rounds=1"]).cell(0.5, False, 0)
    train_or_resume(cell.experiment, tmp_path / "run", "cpu")
    assert Found(cell, tmp_path / "run").rounds[0]["xi"] == runs(out)[0].rounds[0]["xi"]


def test_every_file_is_there_and_nothing_trains_again(out: Path) -> None:
    folder, before = out / "figure1b-smoke", trained(out)
    plan = make_plan("prostate", "smoke", changes=["cohort.slices=72"])
    run_study(STUDY, plan, out, jobs=1, device="cpu", resume=True)
    assert trained(out) == before
    assert len(before) == 3
    assert {path.name for path in folder.iterdir()} == {
        "study.json", "results.csv", "rounds.csv", "fits.csv", "table.md", "figure1b.svg", "figure1b.png",
    }  # fmt: skip
    text = (folder / "table.md").read_text()
    assert text.index("ε hospital") < text.index("ε intermediary")
    assert "C is the exact median of the norms: no ε covers it." in text  # v is fixed
    assert "ξ, φ, λ and cosines are un-noised, written down for study: no ε covers them." in text


def test_v_is_what_the_smallest_hospital_allows(tmp_path: Path) -> None:
    """Five images are two intermediaries of two."""
    plan = make_plan("prostate", "smoke")
    assert min(plan.training_sizes) == 5
    cells = STUDY.cells(plan)
    assert [cell.experiment.intermediaries.count for cell in cells] == [1, 2]
    found = [
        made_up(tmp_path, cell, [{"xi": 2.0 / v, "phi": 2.0 + v, "lambda": 1.0 / v}])
        for v, cell in enumerate(cells, 1)
    ]
    text = write_words(STUDY, tmp_path, plan, found)
    assert "no images for v = 3." in text
    assert "round 1: ξ = ξ₁/v holds, R² = 1.00; the best power is ξ ∝ v^−1.00.\n" in text
    assert "too few v for another power" in text  # φ
    assert "| round 1 | φ = φ₁·v | -0.60 | – | 0.42 | – |" in text  # a = 11/5: 1 − 0.8/0.5


def test_without_diagnostics_nothing_starts() -> None:
    with pytest.raises(InputError, match="diagnostics=true"):
        STUDY.cells(make_plan("prostate", "smoke", changes=["diagnostics=false"]))


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
    assert ours(np.array([2.0])) == pytest.approx(line.slope * 2.0**power + line.intercept)


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


def write_made_up(folder: Path, xi: float, phi: float) -> str:
    """Runs in which ξ and φ are exact powers of v in round 1, and twice that in round 2."""
    plan = make_plan("prostate", "small")
    found = []
    for cell in STUDY.cells(plan):
        v = cell.experiment.intermediaries.count
        first = {"intermediaries": v, "xi": 8.0 * v**xi, "phi": 2.0 * v**phi, "lambda": 4.0 * v ** (xi - phi)}
        found.append(made_up(folder, cell, [first, first | {"xi": 16.0 * v**xi}]))
    assert [one.rounds[0]["intermediaries"] for one in found] == V
    return write_words(STUDY, folder, plan, found)


def test_the_papers_laws_are_said_to_hold_where_they_do(tmp_path: Path) -> None:
    text = write_made_up(tmp_path, -1, 1)
    for how in ("round 1", "mean over the rounds"):
        assert f"- {how}: ξ = ξ₁/v holds, R² = 1.00; the best power is ξ ∝ v^−1.00 (R² = 1.00 in log" in text
        assert f"- {how}: φ = φ₁·v holds, R² = 1.00" in text
        assert f"- {how}: λ = λ₁/v² holds, R² = 1.00; the best power is λ ∝ v^−2.00" in text
    assert "does not hold" not in text
    assert "| 2 | 20.0 | 10.0 | 4.000 | 4.000 | 1.000 | 6.000 | 4.000 | 1.000 |" in text


def test_the_papers_laws_are_said_to_fail_where_they_do(tmp_path: Path) -> None:
    """Updates that are orthogonal: s = ½; then updates that agree: s = 1."""
    text = write_made_up(tmp_path / "half", -1.5, 0.5)
    assert "- round 1: ξ = ξ₁/v holds by its R² only, R² = 0.92; the best power is ξ ∝ v^−1.50 (" in text
    assert "- round 1: φ = φ₁·v does not hold, R² = 0.48; φ ∝ v^0.50 does (R² = 1.00 in logarithms)" in text
    assert "; with a constant added it does, R² = 0.98." in text
    assert "- round 1: λ = λ₁/v² holds, R² = 1.00" in text
    text = write_made_up(tmp_path / "one", -2, 0.01)
    assert "- round 1: ξ = ξ₁/v does not hold, R² = 0.83; ξ ∝ v^−2.00 does" in text
    assert "- round 1: φ = φ₁·v does not hold, R² = -" in text
    assert "- round 1: λ = λ₁/v² holds, R² = 1.00" in text


def test_no_power_of_v_is_said_to_hold_where_none_does(tmp_path: Path) -> None:
    plan = make_plan("prostate", "small")
    ups_and_downs = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0]
    found = [
        made_up(tmp_path, cell, [{"xi": value, "phi": value, "lambda": 1.0}])
        for cell, value in zip(STUDY.cells(plan), ups_and_downs, strict=True)
    ]
    text = write_words(STUDY, tmp_path, plan, found)
    assert "ξ = ξ₁/v does not hold" in text
    assert "; no power of v does, at best ξ ∝ v^" in text
    assert "λ = λ₁/v² cannot be tested" in text
