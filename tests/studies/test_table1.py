"""Table 1: every cell is there, claims follow from the numbers; and what all tables say of their runs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import made_up, rows, smoke, tell

from silodp.studies.output import caution
from silodp.studies.paper import METHODS
from silodp.studies.pictures import BLUE, Line, Panel, Picture, draw
from silodp.studies.planning import make_plan
from silodp.studies.study import CellRun, Plan
from silodp.studies.table1 import PROSTATE, cells

SEEDS = make_plan("prostate", "smoke", seeds=2)


def test_every_cell() -> None:
    for name, metric in (("table1-prostate", "dice"), ("table1-ich", "auc")):
        found = rows(smoke(name) / "results.csv")
        assert len(found) == 12  # four optimizers: no privacy, without, with
        assert {row["method"] for row in found} == set(METHODS.values())
        assert all(0 <= float(row[f"test_{metric}"]) <= 1 for row in found)
    text = (smoke("table1-prostate") / "table.md").read_text()
    assert "Counted as in the paper it would be" in text  # v changed
    assert "no ε covers these two" in text


def scored(folder: Path, without: Sequence[float], with_: Sequence[float]) -> list[CellRun]:
    """Every cell with the Dice of its seed, without and with intermediaries."""
    found = []
    for cell in cells(SEEDS):
        split, seed = cell.columns["intermediaries"] == "with", int(cell.columns["seed"])
        score = (with_ if split else without)[seed] if cell.columns["z"] else 0.9
        epsilon = {"hospital": 70.0 if split else 5.0, "intermediary": 5.0}
        test = {"dice": score, "iou": score / 2}
        found.append(made_up(folder, cell, [{"intermediaries": 3}], test=test, epsilon=epsilon))
    return found


def test_claims_are_of_each_method_beside_the_papers_gains(tmp_path: Path) -> None:
    claims = PROSTATE.results(SEEDS, scored(tmp_path / "good", [0.2, 0.4], [0.5, 0.3])).claims
    assert [claim.holds for claim in claims] == [True] * 4
    assert claims[0].measured == "1 of 1: +0.100 at z = 0.5"
    assert claims[0].paper == "1 of 1: +0.408 at z = 0.5"
    bad = scored(tmp_path / "bad", [0.5, 0.4], [0.5, 0.3])
    assert [claim.holds for claim in PROSTATE.results(SEEDS, bad).claims] == [False] * 4
    others = [one for one in bad if one.cell.columns["method"] != "DP-FedAvg"]
    assert [claim.holds for claim in PROSTATE.results(SEEDS, others).claims] == [None] + [False] * 3


@pytest.mark.parametrize(
    ("with_", "said", "holds"),
    [
        ((0.5, 0.5), "| 5.0 | 70.0 | 5.0 | 3 | 0.300 ± 0.141 | 0.500 ± 0.000 | +0.200 |", True),
        ((0.5, math.nan), "| 0.300 ± 0.141 | 0.500 (1 of 2 seeds defined) | +0.200 |", True),
        ((math.nan, math.nan), "| 0.300 ± 0.141 | – (0 of 2 seeds defined) | – |", None),
    ],
    ids=["both defined", "one undefined", "both undefined"],
)
def test_mean_and_spread_are_of_the_seeds_that_are_defined(
    tmp_path: Path, with_: tuple[float, float], said: str, holds: bool | None
) -> None:
    """0.2 and 0.4: mean 0.3, sample standard deviation √0.02."""
    found = scored(tmp_path / "runs", [0.2, 0.4], with_)
    told = tell(PROSTATE, tmp_path, SEEDS, found)
    assert said in next(line for line in told.text.splitlines() if "| DP-FedAvg | 0.5" in line)
    assert "nan" not in told.text
    assert set(told.holds) == {holds}


def test_numbers_stand_in_the_order_of_numbers(tmp_path: Path) -> None:
    """Of two seeds one ends with v = 10, one with 9."""
    found = [
        made_up(tmp_path, cell, [{"intermediaries": 10 - int(cell.columns["seed"])}]) for cell in cells(SEEDS)
    ]
    assert "| 9, 10 |" in tell(PROSTATE, tmp_path, SEEDS, found).text


def test_a_line_goes_through_the_means_of_several_seeds_and_shows_each() -> None:
    line = Line([(0.3, 0.2), (0.5, 0.6), (0.3, 0.4), (0.5, math.nan)], "o-", BLUE)
    (axes,) = draw(Picture([Panel("z", "Dice", [line, Line([(0.3, 0.5)], "s", BLUE)])], (2, 2))).axes
    mean, each, single = (list(zip(*drawn.get_data(), strict=True)) for drawn in axes.lines)
    assert mean == [(0.3, pytest.approx(0.3)), (0.5, 0.6)]
    assert each[:3] == [(0.3, 0.2), (0.5, 0.6), (0.3, 0.4)]
    assert single == [(0.3, 0.5)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ((), "C is the exact median of the norms and v follows from un-noised norms: no ε covers these"),
        (("clipping.rule=quantile",), "program v follows from un-noised norms: no ε covers it"),
        (("intermediaries.rule=fixed",), "program C is the exact median of the norms: no ε covers it"),
        (("intermediaries.rule=fixed", "clipping.rule=quantile"), ""),
    ],
)
def test_the_caution_is_about_the_rules_that_ran(tmp_path: Path, changes: tuple[str, ...], says: str) -> None:
    plan = make_plan("prostate", "smoke", changes=changes)
    said = caution(plan, [made_up(tmp_path, plan.cell(0.5, True, 0), [{}])])
    assert says in said
    assert ("authors" in said) == bool(says)
    assert "on test images, mean over hospitals, one seed; no ε covers them." in said


def test_versions_and_parts_are_named(tmp_path: Path) -> None:
    def written(plan: Plan) -> str:
        found = [made_up(tmp_path, cell, [{}]) for cell in cells(plan)]
        made_up(tmp_path, found[0].cell, [{}], silodp="0.1.0 (abc1234+changes)")
        return tell(PROSTATE, tmp_path, plan, found).text

    assert "silodp 0.1.0, 0.1.0 (abc1234+changes)." in (whole := written(SEEDS))
    versions = [row["silodp"] for row in rows(tmp_path / "results.csv")]
    assert versions == ["0.1.0 (abc1234+changes)"] + ["0.1.0"] * 23
    part = "This is a part of the study: only the runs with «fedavg» in their names (--only)."
    assert part not in whole
    assert part in written(replace(SEEDS, only="fedavg"))
