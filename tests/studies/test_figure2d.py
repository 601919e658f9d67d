"""Figure 2(d) at its smallest: v over rounds, its closed form, and what is said of how it varies."""

import math
from pathlib import Path

import pytest
from made_up_runs import made_up, rows, trained, write_words

from silodp.studies import study_named
from silodp.studies.figure2d import STUDY
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Found, Plan
from silodp.studies.table1 import PROSTATE

SMALL = make_plan("prostate", "small")


def plan() -> Plan:
    return make_plan("prostate", "smoke", changes=["rounds=3"])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figure2d")
    run_study(STUDY, plan(), out, jobs=1, device="cpu")
    return out


def test_it_draws_table_1s_own_runs_with_intermediaries() -> None:
    assert study_named("figure2d") is STUDY
    cells = STUDY.cells(SMALL)
    assert [cell.columns["intermediaries"] for cell in cells] == ["with"] * 3
    assert {cell.folder_name for cell in cells} < {cell.folder_name for cell in PROSTATE.cells(SMALL)}


def test_points_are_those_of_the_run(out: Path) -> None:
    (cell,) = STUDY.cells(plan())
    one = Found(cell, out / "runs" / cell.folder_name)
    lines = rows(out / "figure2d-smoke" / "rounds.csv")
    assert [int(line["v"]) for line in lines] == [line["intermediaries"] for line in one.rounds]
    assert lines[0]["v"] == "1"
    closed = math.sqrt(0.5 * math.sqrt(one.summary["parameters"]) / 6)
    assert all(float(line["closed_form"]) == pytest.approx(closed) for line in lines)
    assert f"| {closed:.1f} |" in (out / "figure2d-smoke" / "table.md").read_text()


def test_every_file_is_there_and_nothing_trains_again(out: Path) -> None:
    before = trained(out)
    assert len(before) == 1
    folder = run_study(STUDY, plan(), out, jobs=1, device="cpu", resume=True)
    assert trained(out) == before
    assert {path.name for path in folder.iterdir()} == {
        "study.json", "results.csv", "rounds.csv", "table.md", "figure2d.svg", "figure2d.png",
    }  # fmt: skip
    text = (folder / "table.md").read_text()
    assert text.index("ε hospital") < text.index("ε intermediary")


def write(folder: Path, courses: dict[float, list[int]], capped: tuple[int, ...] = (), seeds: int = 1) -> str:
    """v after the measuring round, whose v of 1 must not count; `capped` are rounds."""
    plan = make_plan("prostate", "small", seeds=seeds)
    found = []
    for cell in STUDY.cells(plan):
        if (z := float(cell.columns["z"])) in courses:
            lines = [
                {"applied": number > 1, "intermediaries": v, "intermediaries_capped": number in capped}
                for number, v in enumerate([1, *courses[z]], 1)
            ]
            found.append(made_up(folder, cell, lines))
    return write_words(STUDY, folder, plan, found)


def test_the_papers_course_holds(tmp_path: Path) -> None:
    """One change by two at the largest z, as in the paper. d = 10,000 and N = 6: v* = √(z·100/6)."""
    text = write(tmp_path, {0.3: [2, 2, 3, 2], 0.5: [3, 3, 3, 3], 0.7: [4, 6, 5, 5]})
    assert "by more than one from a round to the next in 1 of 9 steps (the largest change is 2): " in text
    assert "«at most one, but for one instance» holds." in text
    assert "Within a run the fewest and the most are 2 apart at most." in text
    assert "median of v grows with z, as in the paper: 2 at z = 0.3, 3 at z = 0.5, 5 at z = 0.7." in text
    assert "It is at most 1.6 from the closed form." in text  # 5 and √(70/6) = 3.4
    assert "| 0.7 | 20.0 | 10.0 | 3.4 | 5 (4–6) | +2 in round 3 | 0 of 4 |" in text
    assert "| 0.5 | 20.0 | 10.0 | 2.9 | 3 (3–3) | none | 0 of 4 |" in text
    assert "capped, so" not in text


def test_another_course_does_not(tmp_path: Path) -> None:
    text = write(tmp_path, {0.3: [6, 3, 6, 6], 0.5: [6, 6, 6, 6], 0.7: [4, 4, 4, 4]}, capped=(3, 4))
    assert "in 2 of 9 steps (the largest change is 3): " in text
    assert "«at most one, but for one instance» does not hold." in text
    assert "Within a run the fewest and the most are 3 apart at most." in text
    assert "median of v does not grow with z, unlike in the paper" in text
    assert "-3 in round 3, +3 in round 4" in text
    assert "In 6 of 12 rounds v is capped" in text


def test_one_instance_a_seed(tmp_path: Path) -> None:
    courses = {0.3: [2, 2], 0.5: [3, 3], 0.7: [4, 6]}
    assert "instance» a seed (2 seeds) holds." in write(tmp_path / "two", courses, seeds=2)
    text = write(tmp_path / "more", courses | {0.5: [3, 5]}, seeds=2)
    assert "in 4 of 6 steps" in text
    assert "instance» a seed (2 seeds) does not hold." in text


def test_too_few_rounds_say_nothing(tmp_path: Path) -> None:
    assert "Too few rounds" in write(tmp_path / "two", {0.5: [3]})
    assert "Too few rounds" in write(tmp_path / "one", {0.5: []})
