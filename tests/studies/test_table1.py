"""Table 1 at its smallest: every cell is there, ε are the closed forms, sentences follow from the numbers."""

import math
from pathlib import Path

import pytest
from made_up_runs import made_up, rows

from silodp.privacy.gaussian import gaussian_epsilon
from silodp.studies import study_named
from silodp.studies.paper import METHODS
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Found, Plan
from silodp.studies.table1 import cells, direction, write


@pytest.fixture(scope="module", params=["table1-prostate", "table1-ich"])
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = study_named(request.param)
    plan = make_plan(chosen.task, "smoke", command="silodp study x")
    return run_study(chosen, plan, tmp_path_factory.mktemp("studies"), jobs=1, device="cpu")


def test_every_cell_and_file(study: Path) -> None:
    files = {path.name for path in study.iterdir()}
    assert files == {"study.json", "results.csv", "table.md", "table1.svg", "table1.png"}
    found = rows(study / "results.csv")
    assert len(found) == 12  # four optimizers: no privacy, without, with
    assert {row["method"] for row in found} == set(METHODS.values())
    metric = "dice" if "prostate" in study.name else "auc"
    assert all(0 <= float(row[f"test_{metric}"]) <= 1 for row in found)
    assert (study / "table1.png").read_bytes().startswith(b"\x89PNG")


def test_epsilons_are_the_closed_forms(study: Path) -> None:
    """Two Gaussian rounds; with intermediaries a hospital contributes v updates in round two."""
    prostate = "prostate" in study.name
    z, delta = (0.5, 0.1) if prostate else (1.0, 0.01)
    for row in rows(study / "results.csv"):
        if float(row["z"]) == 0:
            assert math.isinf(float(row["epsilon_hospital"]))
            continue
        part = gaussian_epsilon(math.sqrt(2) / z, delta)
        assert float(row["epsilon_intermediary"]) == pytest.approx(part)
        v = int(row["v"]) if row["intermediaries"] == "with" else 1
        whole = gaussian_epsilon(math.sqrt(1 + v**2) / z, delta)
        assert float(row["epsilon_hospital"]) == pytest.approx(whole)


def test_the_table_has_ours_beside_the_papers(study: Path) -> None:
    text = (study / "table.md").read_text(encoding="utf-8")
    printed = "0.225 ± 0.032 | 0.633 ± 0.047" if "prostate" in study.name else "0.680 ± 0.014 | 0.808 ± 0.008"
    assert printed in next(line for line in text.splitlines() if line.startswith("| DP-FedAvg | "
        + ("0.5" if "prostate" in study.name else "1")))  # fmt: skip
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert header.index("ε hospital") < header.index("ε intermediary")
    for needed in ("silodp study x", "no ε covers these two", "The hospitals are simulated", "seed 0"):
        assert needed in text


def fabricate(folder: Path, plan: Plan, scores: dict[tuple[bool, int], float]) -> list[Found]:
    """Every cell with these test scores by (with intermediaries, seed)."""
    found = []
    for cell in cells(plan):
        split = cell.columns["intermediaries"] == "with"
        score = scores[split, int(cell.columns["seed"])] if cell.columns["z"] else 0.9
        epsilon = {
            "hospital": 70.0 if split else 5.0, "intermediary": 5.0, "covers_everything": False
        }  # fmt: skip
        lines = [{"intermediaries": 3}]
        found.append(made_up(folder, cell, lines, test={"dice": score, "iou": score / 2}, epsilon=epsilon))
    return found


def test_the_sentence_says_which_pairs_go_against_the_paper(tmp_path: Path) -> None:
    plan = make_plan("prostate", "smoke", seeds=2)
    good = fabricate(
        tmp_path / "good", plan, {(False, 0): 0.2, (False, 1): 0.4, (True, 0): 0.5, (True, 1): 0.3}
    )
    assert direction(plan, good) == (
        "With intermediaries the dice is at least as good in all 4 pairs, as in the paper."
    )
    bad = fabricate(
        tmp_path / "bad", plan, {(False, 0): 0.5, (False, 1): 0.5, (True, 0): 0.4, (True, 1): 0.5}
    )
    assert "worse in 4 of 4 pairs: DP-FedAvg at z = 0.5 (-0.050)" in direction(plan, bad)
    assert direction(plan, []) == "No pair of runs with and without intermediaries."


def test_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    """0.2 and 0.4: mean 0.3, sample standard deviation √0.02."""
    plan = make_plan("prostate", "smoke", seeds=2)
    found = fabricate(
        tmp_path / "runs", plan, {(False, 0): 0.2, (False, 1): 0.4, (True, 0): 0.5, (True, 1): 0.5}
    )
    write(tmp_path, plan, found)
    line = next(
        line for line in (tmp_path / "table.md").read_text().splitlines() if "| DP-FedAvg | 0.5" in line
    )
    assert "| 5.0 | 70.0 | 5.0 | 3 | 0.300 ± 0.141 | 0.500 ± 0.000 | +0.200 |" in line
