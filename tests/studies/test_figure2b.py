"""Figure 2(b) at its smallest: the spread of cosines against the runs' files and runs made by hand."""

from pathlib import Path

import pytest
from made_up_runs import made_up, rows, trained, write_words

from silodp import InputError
from silodp.studies import study_named
from silodp.studies.figure2a import STUDY as FIGURE2A
from silodp.studies.figure2b import STUDY
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Found

SMALL, SMOKE = make_plan("prostate", "small"), make_plan("prostate", "smoke")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figure2b")
    run_study(STUDY, SMOKE, out, jobs=1, device="cpu")
    return out


def test_points_are_those_of_the_runs(out: Path) -> None:
    lines = rows(out / "figure2b-smoke" / "rounds.csv")
    found = [Found(cell, out / "runs" / cell.folder_name) for cell in STUDY.cells(SMOKE)]
    expected = [line["cosine_std"] for one in found for line in one.rounds]
    assert [float(line["cosine_std"]) for line in lines] == expected
    assert all(0 < value < 1 for value in expected)
    # One round that counts with intermediaries: the second.
    last = found[1].rounds[1]["cosine_std"]
    assert f"| {last:.3f} ({last:.3f}–{last:.3f}) |" in (out / "figure2b-smoke" / "table.md").read_text()


def test_figure_2a_finds_its_runs_done_and_nothing_trains_again(out: Path) -> None:
    assert study_named("figure2b") is STUDY
    before = trained(out)
    assert len(before) == 2
    run_study(FIGURE2A, SMOKE, out, jobs=1, device="cpu")
    folder = run_study(STUDY, SMOKE, out, jobs=1, device="cpu", resume=True)
    assert trained(out) == before
    assert {path.name for path in folder.iterdir()} == {
        "study.json", "results.csv", "rounds.csv", "table.md", "figure2b.svg", "figure2b.png",
    }  # fmt: skip


def test_without_diagnostics_nothing_starts() -> None:
    with pytest.raises(InputError, match="diagnostics=true"):
        STUDY.cells(make_plan("prostate", "smoke", changes=["diagnostics=false"]))


def write(folder: Path, without: list[float], with_: list[float]) -> str:
    """Two seeds of one z make four rounds; the measuring round must not count."""
    plan = make_plan("prostate", "small", seeds=2)
    found = []
    for seed in plan.seeds:
        for place, z in enumerate(plan.noise):
            alone = [{"cosine_std": without[place] + 0.01 * sign} for sign in (-1, 1)]
            found.append(made_up(folder, plan.cell(z, False, seed), alone))
            split = [{"applied": False, "cosine_std": 0.9}, {"cosine_std": with_[place], "intermediaries": 3}]
            found.append(made_up(folder, plan.cell(z, True, seed), split))
    return write_words(STUDY, folder, plan, found)


def test_claims_that_hold(tmp_path: Path) -> None:
    text = write(tmp_path, [0.3, 0.25, 0.2], [0.1, 0.1, 0.1])
    assert "a smaller spread with intermediaries, holds at every z (3 of 3)" in text
    assert "ξ, φ, λ and cosines are un-noised" in text
    assert "falls with z for DP-FedAvg without intermediaries, holds: 0.300 at z = 0.3" in text
    assert "| 0.3 | 20.0 | 20.0 | 10.0 | 3 | 0.300 (0.290–0.310) | 0.100 (0.100–0.100) | -0.200 |" in text
    assert "2 seeds" in text


def test_claims_that_fail(tmp_path: Path) -> None:
    text = write(tmp_path, [0.3, 0.2, 0.25], [0.1, 0.25, 0.3])
    assert "does not hold at z = 0.5, 0.7 (1 of 3 z have it)" in text
    assert "falls with z for DP-FedAvg without intermediaries, does not hold: 0.300 at z = 0.3" in text


def test_a_round_without_cosines_is_left_out(tmp_path: Path) -> None:
    """The file has null where a number is not finite."""
    lines = [{"cosine_std": None}, {"cosine_std": 0.2}]
    text = write_words(STUDY, tmp_path, SMALL, [made_up(tmp_path, SMALL.cell(0.5, False, 0), lines)])
    assert "| 0.5 | 20.0 | – | – | – | 0.200 (0.200–0.200) | – | – |" in text
    assert "needs more than one z" in text
