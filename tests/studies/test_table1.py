"""Table 1: every cell is there, claims follow from the numbers; and what all tables say of their runs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import made_up, rows, smoke, write_words

from silodp.studies.output import Results, caution, run_rows, setting
from silodp.studies.paper import METHODS
from silodp.studies.planning import make_plan
from silodp.studies.study import CellRun, Plan
from silodp.studies.table1 import PROSTATE, cells


def test_every_cell(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, metric in (("table1-prostate", "dice"), ("table1-ich", "auc")):
        found = rows(smoke(name, tmp_path_factory) / "results.csv")
        assert len(found) == 12  # four optimizers: no privacy, without, with
        assert {row["method"] for row in found} == set(METHODS.values())
        assert all(0 <= float(row[f"test_{metric}"]) <= 1 for row in found)
    text = (smoke("table1-prostate", tmp_path_factory) / "table.md").read_text()
    assert "Counted as in the paper it would be" in text  # v changed
    assert "no ε covers these two" in text


def fabricate(folder: Path, plan: Plan, scores: dict[tuple[bool, int], float]) -> list[CellRun]:
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


def test_claims_are_of_each_method_beside_the_papers_gains(tmp_path: Path) -> None:
    plan = make_plan("prostate", "smoke", seeds=2)
    scores = {(False, 0): 0.2, (False, 1): 0.4, (True, 0): 0.5, (True, 1): 0.3}
    claims = PROSTATE.results(plan, fabricate(tmp_path / "good", plan, scores)).claims
    assert [claim.holds for claim in claims] == [True] * 4
    assert claims[0].measured == "1 of 1: +0.100 at z = 0.5"
    assert claims[0].paper == "1 of 1: +0.408 at z = 0.5"
    bad = fabricate(tmp_path / "bad", plan, scores | {(False, 0): 0.5})
    assert [claim.holds for claim in PROSTATE.results(plan, bad).claims] == [False] * 4
    mixed = [one for one in bad if one.cell.columns["method"] != "DP-FedAvg"]
    assert [claim.holds for claim in PROSTATE.results(plan, mixed).claims] == [None] + [False] * 3


def test_what_is_undefined_confirms_nothing(tmp_path: Path) -> None:
    """A Dice of NaN, written as null, in one of two seeds, then in both."""
    plan = make_plan("prostate", "smoke", seeds=2)
    one = {(False, 0): 0.2, (False, 1): 0.4, (True, 0): 0.5, (True, 1): math.nan}
    text = write_words(PROSTATE, tmp_path, plan, fabricate(tmp_path / "one", plan, one))
    assert "| 0.300 ± 0.141 | 0.500 (1 of 2 seeds defined) | +0.200 |" in text
    lost = fabricate(tmp_path / "all", plan, one | {(True, 0): math.nan})
    text = write_words(PROSTATE, tmp_path, plan, lost)
    assert "| 0.300 ± 0.141 | – (0 of 2 seeds defined) | – |" in text
    assert "nan" not in text
    assert {claim.holds for claim in PROSTATE.results(plan, lost).claims} == {None}


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
    results = Results("", found)
    assert "silodp 0.1.0, 0.1.0 (abc1234+changes)." in setting(plan, results)
    assert "a part of the study" not in setting(plan, results)
    part = setting(replace(plan, only="fedavg"), results)
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
