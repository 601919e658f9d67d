"""Table 1 at its smallest: every cell is there, ε are the closed forms, sentences follow from the numbers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import made_up, rows, shared_folder, write_words

from silodp.privacy.gaussian import gaussian_epsilon
from silodp.studies import study_named
from silodp.studies.output import caution, run_rows, setting
from silodp.studies.paper import METHODS
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Found, Plan
from silodp.studies.table1 import PROSTATE, cells, direction


@pytest.fixture(scope="module", params=["table1-prostate", "table1-ich"])
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = study_named(request.param)
    plan = make_plan(chosen.task, "smoke", command="silodp study x")
    return run_study(chosen, plan, shared_folder(tmp_path_factory), jobs=1, device="cpu")


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
        v = int(row["v"]) if row["intermediaries"] == "with" else 1
        whole = gaussian_epsilon(math.sqrt(1 + v**2) / z, delta)
        assert float(row["epsilon_hospital"]) == pytest.approx(whole)
        # Where v changed no intermediary lasted: the hospital's ε stands for it.
        assert float(row["epsilon_intermediary"]) == pytest.approx(whole)


def test_the_table_has_ours_beside_the_papers(study: Path) -> None:
    text = (study / "table.md").read_text(encoding="utf-8")
    printed = "0.225 ± 0.032 | 0.633 ± 0.047" if "prostate" in study.name else "0.680 ± 0.014 | 0.808 ± 0.008"
    assert printed in next(line for line in text.splitlines() if line.startswith("| DP-FedAvg | "
        + ("0.5" if "prostate" in study.name else "1")))  # fmt: skip
    if "prostate" in study.name:  # v changed
        assert "Counted as the paper does it would be" in text
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert header.index("ε hospital") < header.index("ε intermediary")
    for needed in (
        "silodp study x",
        "no ε covers these two",
        "The hospitals are simulated",
        "seed 0",
    ):
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
        "With intermediaries the Dice is at least as good in all 4 pairs, as in the paper."
    )
    bad = fabricate(
        tmp_path / "bad", plan, {(False, 0): 0.5, (False, 1): 0.5, (True, 0): 0.4, (True, 1): 0.5}
    )
    assert "worse in 4 of 4 pairs: DP-FedAvg at z = 0.5 (-0.050)" in direction(plan, bad)
    assert direction(plan, []) == "No pair of runs with and without intermediaries."


def test_what_is_undefined_is_never_as_in_the_paper(tmp_path: Path) -> None:
    """A Dice of NaN, written as null, in one of two seeds, then in both."""
    plan = make_plan("prostate", "smoke", seeds=2)
    one = {(False, 0): 0.2, (False, 1): 0.4, (True, 0): 0.5, (True, 1): math.nan}
    found = fabricate(tmp_path / "one", plan, one)
    text = write_words(PROSTATE, tmp_path, plan, found)
    assert "| 0.300 ± 0.141 | 0.500 (1 of 2 seeds defined) | +0.200 |" in text
    lost = fabricate(tmp_path / "all", plan, one | {(True, 0): math.nan})
    text = write_words(PROSTATE, tmp_path, plan, lost)
    assert "| 0.300 ± 0.141 | – (0 of 2 seeds defined) | – |" in text
    assert "as in the paper." not in text
    assert "nan" not in text
    names = "DP-FedAvg at z = 0.5; DP-FedAdam at z = 0.5; DP-FedNova at z = 0.5; DP2-RMSProp at z = 0.5"
    assert direction(plan, lost) == f"No pair of runs can be compared. The Dice is undefined for {names}."
    mixed = [run for run in lost if run.cell.columns["method"] != "DP-FedAvg"]
    mixed += [run for run in found if run.cell.columns["method"] == "DP-FedAvg"]
    assert direction(plan, mixed).startswith(
        "With intermediaries the Dice is at least as good in the one pair, as in the paper. The Dice is und"
    )


def test_numbers_stand_in_the_order_of_numbers(tmp_path: Path) -> None:
    """Of two seeds one ends with v = 10, one with 9."""
    plan = make_plan("prostate", "smoke", seeds=2)
    found = [
        made_up(tmp_path, cell, [{"intermediaries": 10 - int(cell.columns["seed"])}]) for cell in cells(plan)
    ]
    text = write_words(PROSTATE, tmp_path, plan, found)
    assert "| 9, 10 |" in text
    assert "| v, last round | Dice: without |" in text


def test_the_caution_is_about_the_rules_that_ran(tmp_path: Path) -> None:
    def said(**changes: str) -> str:
        settings = {key.replace("__", "."): value for key, value in changes.items()}
        plan = make_plan("prostate", "smoke", changes=[f"{key}={value}" for key, value in settings.items()])
        return caution(plan, [made_up(tmp_path, plan.cell(0.5, True, 0), [{}])])

    assert (
        "C is the exact median of the norms and v follows from un-noised norms: no ε covers these" in said()
    )
    assert "program v follows from un-noised norms: no ε covers it" in said(clipping__rule="quantile")
    assert "C is the exact median of the norms: no ε covers it" in said(intermediaries__rule="fixed")
    both = said(intermediaries__rule="fixed", clipping__rule="quantile")
    assert "authors" not in both
    assert "on test images, mean over hospitals, one seed; no ε covers them." in both


def test_versions_and_parts_are_named(tmp_path: Path) -> None:
    plan = make_plan("prostate", "smoke")
    found = [made_up(tmp_path, cell, [{}]) for cell in cells(plan)]
    made_up(tmp_path, found[0].cell, [{}], silodp="0.1.0 (abc1234+changes)")
    assert "silodp 0.1.0, 0.1.0 (abc1234+changes)." in setting(plan, found)
    assert "a part of the study" not in setting(plan, found)
    part = setting(replace(plan, only="fedavg"), found)
    assert "This is a part of the study: only the runs with «fedavg» in their names (--only)." in part
    versions = [row["silodp"] for row in run_rows(found)]
    assert versions == ["0.1.0 (abc1234+changes)"] + ["0.1.0"] * 11


def test_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    """0.2 and 0.4: mean 0.3, sample standard deviation √0.02."""
    plan = make_plan("prostate", "smoke", seeds=2)
    found = fabricate(
        tmp_path / "runs", plan, {(False, 0): 0.2, (False, 1): 0.4, (True, 0): 0.5, (True, 1): 0.5}
    )
    text = write_words(PROSTATE, tmp_path, plan, found)
    line = next(line for line in text.splitlines() if "| DP-FedAvg | 0.5" in line)
    assert "| 5.0 | 70.0 | 5.0 | 3 | 0.300 ± 0.141 | 0.500 ± 0.000 | +0.200 |" in line
