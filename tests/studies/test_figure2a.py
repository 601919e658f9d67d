"""Figure 2(a) at its smallest: N·λ against the runs' own files, the sentences against runs made by hand."""

import math
from pathlib import Path

import pytest
from made_up_runs import made_up, rows, trained, write_words

from silodp import InputError
from silodp.studies import study_named
from silodp.studies.figure2a import STUDY
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Found, Plan
from silodp.studies.table1 import PROSTATE

SMALL = make_plan("prostate", "small")


def plan() -> Plan:
    return make_plan("prostate", "smoke", changes=["rounds=3"])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figure2a")
    run_study(STUDY, plan(), out, jobs=1, device="cpu")
    return out


def test_it_is_registered_and_draws_table_1s_own_runs() -> None:
    assert study_named("figure2a") is STUDY
    mine = [cell.folder_name for cell in STUDY.cells(SMALL)]
    assert len(set(mine)) == 6
    assert set(mine) < {cell.folder_name for cell in PROSTATE.cells(SMALL)}


def test_points_are_n_times_the_runs_lambda(out: Path) -> None:
    lines = rows(out / "figure2a-smoke" / "rounds.csv")
    found = [Found(cell, out / "runs" / cell.folder_name) for cell in STUDY.cells(plan())]
    expected = [6 * line["lambda"] for one in found for line in one.rounds]
    assert [float(line["n_lambda"]) for line in lines] == pytest.approx(expected)
    assert [line["applied"] for line in lines] == ["True"] * 3 + ["False"] + ["True"] * 2
    # N·λ = z√d/(N·v²) where all norms are C; their mean is within a factor of two of it
    for line in lines:
        closed = 0.5 * math.sqrt(found[0].summary["parameters"]) / 6 / int(line["v"]) ** 2
        assert 1 / 2 < float(line["n_lambda"]) / closed < 2


def test_every_file_is_there_and_nothing_trains_again(out: Path) -> None:
    before = trained(out)
    folder = run_study(STUDY, plan(), out, jobs=1, device="cpu", resume=True)
    assert trained(out) == before
    assert len(before) == 2
    assert {path.name for path in folder.iterdir()} == {
        "study.json", "results.csv", "rounds.csv", "table.md", "figure2a.svg", "figure2a.png",
    }  # fmt: skip
    text = (folder / "table.md").read_text()
    assert text.index("ε hospital") < text.index("ε intermediary")
    assert "one z shows no trend" in text
    assert "left out" in text


def test_without_diagnostics_nothing_starts() -> None:
    with pytest.raises(InputError, match="diagnostics=true"):
        STUDY.cells(make_plan("prostate", "smoke", changes=["diagnostics=false"]))


def write(folder: Path, without: list[float], with_: list[float], capped: bool = False) -> str:
    """N·λ of the three z; the measuring round's is absurd, and must not count."""
    found = []
    for place, z in enumerate(SMALL.noise):
        alone = [{"lambda": without[place] / 6 * factor} for factor in (0.5, 1, 3)]
        found.append(made_up(folder, SMALL.cell(z, False, 0), alone))
        first = {"applied": False, "lambda": 1e6}
        after = [
            {"lambda": with_[place] / 6, "intermediaries": 4, "intermediaries_capped": capped}
            for _ in range(3)
        ]
        found.append(made_up(folder, SMALL.cell(z, True, 0), [first, *after]))
    return write_words(STUDY, folder, SMALL, found)


def test_the_papers_claims_are_confirmed_where_they_hold(tmp_path: Path) -> None:
    text = write(tmp_path, [5, 10, 15], [1.1, 0.8, 1.3])
    assert "median of N·λ grows with z, as in the paper: 5.00 at z = 0.3, 10.00 at z = 0.5" in text
    assert "keeps λ centred near 1/N, as in the paper" in text
    assert "(at most 1.30): 1.10 at z = 0.3, 0.80 at z = 0.5, 1.30 at z = 0.7" in text
    assert "3.00 times the smallest without and 1.62 times with" in text
    # z√d/N with d = 10,000; quartiles of 0.5, 1, 3 times the median
    assert "| 0.3 | 20.0 | 20.0 | 10.0 | 4 | 5.00 | 5.00 (3.75–10.00) | 1.10 (1.10–1.10) |" in text
    assert "has no images" not in text
    assert "ξ, φ, λ and cosines are un-noised" in text


def test_the_papers_claims_are_denied_where_they_fail(tmp_path: Path) -> None:
    text = write(tmp_path, [5, 15, 10], [1.1, 0.6, 1.3], capped=True)
    assert "median of N·λ does not grow with z, unlike in the paper" in text
    assert "does not keep λ near 1/N" in text
    assert "(at most 1.67)" in text  # 1/0.6
    assert "In 9 of 9 rounds with intermediaries the smallest hospital has no images" in text


def test_some_runs_alone_are_written_too(tmp_path: Path) -> None:
    """As with --only."""
    one = made_up(tmp_path, SMALL.cell(0.5, True, 0), [{"lambda": 0.2}])
    text = write_words(STUDY, tmp_path, SMALL, [one])
    assert "| 0.5 | – | 20.0 | 10.0 | 1 | 8.33 | – | 1.20 (1.20–1.20) |" in text
    assert "1.20 at z = 0.5" in text
