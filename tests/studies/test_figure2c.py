"""Figure 2(c) at its smallest: who trains, who is tested, and what ε that costs."""

import math
from pathlib import Path

import pytest
from made_up_runs import made_up, rows, trained, write_words

from silodp import InputError
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.studies import study_named
from silodp.studies.figure2c import STUDY
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Found, Plan
from silodp.studies.table1 import PROSTATE

SMALL, SMOKE = make_plan("prostate", "small"), make_plan("prostate", "smoke")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figure2c")
    run_study(STUDY, SMOKE, out, jobs=1, device="cpu")
    return out


def test_two_to_six_hospitals_and_all_six_are_table_1s_own_run() -> None:
    assert study_named("figure2c") is STUDY
    cells = STUDY.cells(SMALL)
    assert [cell.experiment.participation.members for cell in cells] == [2, 2, 3, 3, 4, 4, 5, 5, None, None]
    assert {cell.experiment.privacy.noise_multiplier for cell in cells} == {0.3}
    shared = {cell.folder_name for cell in cells} & {cell.folder_name for cell in PROSTATE.cells(SMALL)}
    assert shared == {cell.folder_name for cell in cells[-2:]}
    assert len({cell.folder_name for cell in cells}) == 10


def test_fewer_train_and_all_are_tested(out: Path) -> None:
    found = [Found(cell, out / "runs" / cell.folder_name) for cell in STUDY.cells(SMOKE)]
    tested = [set(one.summary["test"]["last"]["hospitals"]) for one in found]
    assert all(hospitals == tested[-1] and len(hospitals) == 6 for hospitals in tested)
    assert [len(one.rounds[0]["participants"]) for one in found] == [2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    points = rows(out / "figure2c-smoke" / "points.csv")
    assert [point["hospitals"] for point in points] == [n for n in "23456" for _ in range(2)]
    assert [float(point["test_dice"]) for point in points] == [
        one.summary["test"]["last"]["mean"]["dice"] for one in found
    ]


def test_epsilon_is_the_closed_form_at_the_rules_delta(out: Path) -> None:
    """Two rounds at z = 0.5; v is 1 in the first, and with intermediaries what the second took."""
    for row in rows(out / "figure2c-smoke" / "results.csv"):
        assert float(row["delta"]) == 0.1  # 10^-1 ≤ 1/N for two to ten hospitals
        v = int(row["v"])
        assert (v > 1) == (row["intermediaries"] == "with")
        hospital = gaussian_epsilon(math.sqrt(1 + v**2) / 0.5, 0.1)
        assert float(row["epsilon_hospital"]) == pytest.approx(hospital)
        assert float(row["epsilon_intermediary"]) == pytest.approx(hospital)  # v changed: none lasted


def test_every_file_is_there_and_nothing_trains_again(out: Path) -> None:
    before = trained(out)
    assert len(before) == 10
    folder = run_study(STUDY, SMOKE, out, jobs=1, device="cpu", resume=True)
    assert trained(out) == before
    assert {path.name for path in folder.iterdir()} == {
        "study.json", "results.csv", "points.csv", "table.md", "figure2c.svg", "figure2c.png",
    }  # fmt: skip
    text = (folder / "table.md").read_text()
    assert text.index("ε hospital") < text.index("ε intermediary")
    assert "The first N of 6 hospitals train" in text


def test_other_cohorts_have_other_numbers_of_hospitals() -> None:
    def numbers(hospitals: int) -> list[int]:
        plan = Plan("prostate", "small", SMALL.base, (0,))
        vars(plan)["training_sizes"] = (9,) * hospitals
        found = [cell.experiment.participation.members or hospitals for cell in STUDY.cells(plan)]
        assert found[::2] == found[1::2]
        return found[::2]

    assert numbers(2) == [2]
    assert numbers(3) == [2, 3]
    assert numbers(6) == [2, 3, 4, 5, 6]
    assert numbers(20) == [2, 6, 11, 16, 20]
    with pytest.raises(InputError, match="two or more"):
        numbers(1)


def make(folder: Path, without: dict[int, float], with_: dict[int, float], seeds: int = 1) -> list[Found]:
    """The Dice of N hospitals; of several seeds the last is the odd one out by ±0.01."""
    plan = make_plan("prostate", "small", seeds=seeds)
    found = []
    for cell in STUDY.cells(plan):
        members = cell.experiment.participation.members or 6
        dice = (with_ if cell.columns["intermediaries"] == "with" else without).get(members)
        if dice is not None:
            dice += 0.01 * (2 * int(cell.columns["seed"]) - 1) * (seeds > 1)
            found.append(made_up(folder, cell, [{}], members=members, test={"dice": dice}))
    return found


def write(folder: Path, without: dict[int, float], with_: dict[int, float], seeds: int = 1) -> str:
    plan = make_plan("prostate", "small", seeds=seeds)
    return write_words(STUDY, folder, plan, make(folder, without, with_, seeds))


def test_a_method_that_is_stable_is_called_so(tmp_path: Path) -> None:
    text = write(tmp_path, {2: 0.1, 6: 0.4}, {2: 0.6, 6: 0.7})
    assert (
        "Without intermediaries the Dice goes from 0.400 with 6 hospitals to 0.100 with 2 (-0.300, 75% lost)"
        in text
    )
    assert (
        "With intermediaries the Dice goes from 0.700 with 6 hospitals to 0.600 with 2 (-0.100, 14% lost)"
        in text
    )
    assert "loses a smaller part when hospitals leave, as in the paper; with intermediaries the Dice" in text
    assert "is higher at 2 of 2 N" in text
    # The paper prints Dice for all six at z = 0.3 only, in its table 1.
    row = "| 6 | 0.1 | 20.0 | 20.0 | 10.0 | 1 | 0.400 | 0.700 | +0.300 | 0.414 ± 0.039 | 0.706 ± 0.015 |"
    assert row in text or row.replace("0.015", "0.016") in text
    assert "| 2 | 0.1 | 20.0 | 20.0 | 10.0 | 1 | 0.100 | 0.600 | +0.500 | – | – |" in text


def test_a_method_that_is_not_is_called_so(tmp_path: Path) -> None:
    text = write(tmp_path / "worse", {2: 0.3, 6: 0.4}, {2: 0.3, 6: 0.7})
    assert "does not lose a smaller part when hospitals leave, unlike in the paper" in text
    assert "is higher at 1 of 2 N" in text
    text = write(tmp_path / "risen", {2: 0.5, 6: 0.4}, {2: 0.7, 6: 0.7})
    assert "0.400 with 6 hospitals to 0.500 with 2 (+0.100)." in text
    assert "DP-FedAvg does not lose when hospitals leave, unlike in the paper" in text


def test_what_is_undefined_is_named_and_left_out(tmp_path: Path) -> None:
    nan = math.nan
    STUDY.write(tmp_path, SMALL, make(tmp_path, {2: 0.1, 4: nan, 6: 0.4}, {2: 0.6, 4: 0.5, 6: 0.7}))
    text = (tmp_path / "table.md").read_text()
    assert "is higher at 2 of 2 N. The Dice is undefined for without, N = 4." in text
    assert "| 1 | – (0 of 1 seeds defined) | 0.500 | – | – | – |" in text
    assert "nan" not in text
    picture = (tmp_path / "figure2c.svg").read_text()
    assert "<!-- Test Dice when fewer hospitals train (z = 0.3) -->" in picture  # a title that claims nothing


def test_several_seeds_and_single_runs(tmp_path: Path) -> None:
    text = write(tmp_path / "seeds", {2: 0.1, 6: 0.4}, {2: 0.6, 6: 0.7}, seeds=2)
    assert "| 0.100 ± 0.014 | 0.600 ± 0.014 | +0.500 |" in text
    assert "| 2 | 0.1 | 20.0 | – | – | – | 0.100 | – | – | – | – |" in write(tmp_path / "only", {2: 0.1}, {})
