"""The appendix' tables of hospitals drawn, more rounds and more aggregations, at their smallest."""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_runs import SIZES, fabricate, shared_folder, write_words

from silodp.privacy.gaussian import gaussian_delta, gaussian_epsilon
from silodp.studies import appendix_rounds, study_named
from silodp.studies.appendix_frequency import FREQUENCY, local_work
from silodp.studies.appendix_rounds import ROUNDS
from silodp.studies.appendix_subsampling import SUBSAMPLING, accountants
from silodp.studies.appendix_table import WITH_SPLITTING, WITHOUT_SPLITTING, compare, cost
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study
from silodp.studies.study import Cell, Plan, Study
from silodp.studies.table1 import PROSTATE

PLAN = make_plan("prostate", "smoke")
T, Z, DELTA = 2, 0.5, 0.1


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def smoke_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def results(smoke_out: Path) -> Callable[[Study], tuple[Path, dict[str, dict[str, str]]]]:
    done: dict[str, Path] = {}

    def get(study: Study) -> tuple[Path, dict[str, dict[str, str]]]:
        if study.name not in done:
            done[study.name] = run_study(study, PLAN, smoke_out, jobs=1, device="cpu")
        rows = lines(done[study.name] / "results.csv")
        return done[study.name], {f"{row['intermediaries']} {row['variant']}".strip(): row for row in rows}

    return get


Results = Callable[[Study], tuple[Path, dict[str, dict[str, str]]]]


def test_with_two_thirds_drawn_epsilon_is_the_mixture_over_rounds_taken_part_in(results: Results) -> None:
    """Four of six hospitals a round: δ(ε) = Σ_k Binomial(2, 2/3; k)·δ_Gauss(√k/z)."""
    _, rows = results(SUBSAMPLING)
    assert set(rows) == {"without", "without two-thirds", "with"}
    drawn = rows["without two-thirds"]
    for unit in ("hospital", "intermediary"):
        epsilon = float(drawn[f"epsilon_{unit}"])
        chances = {k: math.comb(T, k) * (2 / 3) ** k * (1 / 3) ** (T - k) for k in range(1, T + 1)}
        delta = sum(chance * gaussian_delta(math.sqrt(k) / Z, epsilon) for k, chance in chances.items())
        assert delta == pytest.approx(DELTA, rel=1e-6)
        assert epsilon < float(rows["without"][f"epsilon_{unit}"])


def test_three_times_the_rounds_cost_the_closed_form(results: Results) -> None:
    _, rows = results(ROUNDS)
    assert {key: row["rounds"] for key, row in rows.items()} == {
        "without": "2", "with": "2", "without rounds6": "6", "with rounds6": "6",
    }  # fmt: skip
    for key, row in rows.items():
        # v is adaptive: no intermediary lasts, so the hospital's ε stands for it.
        alone = gaussian_epsilon(math.sqrt(int(row["rounds"])) / Z, DELTA)
        wanted = alone if key.startswith("without") else float(row["epsilon_hospital"])
        assert float(row["epsilon_intermediary"]) == pytest.approx(wanted, rel=1e-9)
    assert float(rows["without rounds6"]["epsilon_hospital"]) == pytest.approx(
        gaussian_epsilon(math.sqrt(6) / Z, DELTA), rel=1e-9
    )
    # Round one only measures with v = 1; the others have v = 2 and count four times.
    whole = gaussian_epsilon(math.sqrt(1 + 4 * 5) / Z, DELTA)
    assert float(rows["with rounds6"]["epsilon_hospital"]) == pytest.approx(whole, rel=1e-9)


def test_three_times_as_often_is_three_times_the_rounds_of_a_third_of_an_epoch(results: Results) -> None:
    _, rows = results(FREQUENCY)
    often = rows["without often"]
    assert often["rounds"] == "6"
    assert float(often["epsilon_hospital"]) == pytest.approx(
        gaussian_epsilon(math.sqrt(6) / Z, DELTA), rel=1e-9
    )
    assert float(rows["without"]["epsilon_hospital"]) < float(often["epsilon_hospital"])
    cell = next(cell for cell in FREQUENCY.cells(PLAN) if cell.columns["variant"] == "often")
    assert cell.experiment.local.epochs == pytest.approx(1 / 3)


@pytest.mark.parametrize("study", [SUBSAMPLING, ROUNDS, FREQUENCY])
def test_the_table_has_the_files_numbers_beside_the_papers(results: Results, study: Study) -> None:
    folder, rows = results(study)
    text = (folder / "table.md").read_text()
    assert text.index("ε hospital") < text.index("ε intermediary")
    for row in rows.values():
        assert f"| {float(row['test_dice']):.3f} | {float(row['test_iou']):.3f} |" in text
    printed = {
        SUBSAMPLING.name: ["0.225 | 0.135", "0.165 | 0.094", "0.633 | 0.611"],
        ROUNDS.name: ["0.225 | 0.135", "0.633 | 0.611", "0.300 | 0.195", "0.760 | 0.658"],
        FREQUENCY.name: ["0.225 | 0.135", "0.315 | 0.205", "0.633 | 0.611"],
    }
    table = [line for line in text.splitlines() if line.startswith("| DP-FedAvg")]
    assert [line.endswith(f"| {cell} |") for line, cell in zip(table, printed[study.name], strict=True)] == [
        True
    ] * len(table)
    assert (folder / "dice.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (folder / "dice.svg").read_text()


def test_runs_of_table_1_are_not_run_again(results: Results) -> None:
    ours = {cell.folder_name for study in (SUBSAMPLING, ROUNDS, FREQUENCY) for cell in study.cells(PLAN)}
    shared = ours & {cell.folder_name for cell in PROSTATE.cells(PLAN)}
    assert {name.rpartition("-")[0] for name in shared} == {"fedavg-z0.5-seed0", "fedavg-z0.5-split-seed0"}
    assert len(ours) == 2 + 1 + 2 + 1


def test_run_again_it_trains_nothing_and_writes_the_same(results: Results, smoke_out: Path) -> None:
    folder, _ = results(ROUNDS)
    files = {path: path.stat().st_mtime_ns for path in (smoke_out / "runs").rglob("*")}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run_study(ROUNDS, PLAN, smoke_out, resume=True, jobs=1, device="cpu")
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


SMALL = make_plan("prostate", "small")


def by_split(gain: dict[float, float]) -> Callable[[Cell], dict[str, float]]:
    def metrics(cell: Cell) -> dict[str, float]:
        dice = 0.4 + (gain[float(cell.columns["z"])] if cell.columns["intermediaries"] == "with" else 0)
        return {"dice": dice, "iou": dice / 2}

    return metrics


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((0.1, 0.2, 0.3), "higher at every z (+0.100 at z = 0.3, +0.200 at z = 0.5, +0.300 at z = 0.7)"),
        ((-0.1, -0.2, -0.3), "higher at no z (-0.100 at z = 0.3, -0.200 at z = 0.5, -0.300 at z = 0.7)"),
        ((0.1, -0.2, 0.3), "higher at 2 of 3 z"),
    ],
)
def test_comparisons_follow_from_the_numbers(tmp_path: Path, gains: tuple[float, ...], words: str) -> None:
    gain = dict(zip(SMALL.noise, gains, strict=True))
    found = fabricate(ROUNDS, SMALL, tmp_path, by_split(gain), lambda _: 3)
    said = compare(SMALL, found, WITH_SPLITTING, WITHOUT_SPLITTING)
    assert words in said
    assert "in the paper it is higher at every z (+0.292 at z = 0.3, +0.408 at z = 0.5" in said


def test_what_is_undefined_is_said(tmp_path: Path) -> None:
    gain = dict(zip(SMALL.noise, (0.1, math.nan, 0.3), strict=True))
    found = fabricate(ROUNDS, SMALL, tmp_path, by_split(gain), lambda _: 10)
    said = compare(SMALL, found, WITH_SPLITTING, WITHOUT_SPLITTING)
    assert "is higher at every z (+0.100 at z = 0.3, +0.300 at z = 0.7, undefined at z = 0.5); in the" in said
    assert "nan" not in write_words(ROUNDS, tmp_path, SMALL, found)
    lost = fabricate(ROUNDS, SMALL, tmp_path, by_split(dict.fromkeys(SMALL.noise, math.nan)), lambda _: 3)
    said = compare(SMALL, lost, WITH_SPLITTING, WITHOUT_SPLITTING)
    assert "test Dice is undefined at z = 0.3, undefined at z = 0.5, undefined at z = 0.7; in the" in said


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    found = fabricate(ROUNDS, SMALL, tmp_path, by_split(dict.fromkeys(SMALL.noise, 0.1)), lambda _: 3)
    rest = [one for one in found if one.cell.columns["intermediaries"] == "with"]
    assert "no pair of runs" in compare(SMALL, rest, WITH_SPLITTING, WITHOUT_SPLITTING)
    assert "no pair of runs" in cost(SMALL, rest, WITH_SPLITTING, WITHOUT_SPLITTING)
    text = write_words(ROUNDS, tmp_path, SMALL, rest)
    assert "| DP-FedAvg | – | – | – | – | – | – | 0.414 | 0.293 |" in text


def test_the_cost_names_the_hospital_first(tmp_path: Path) -> None:
    """36 rounds and 108: μ = √T/z, three times that for a hospital of three intermediaries."""
    found = fabricate(ROUNDS, SMALL, tmp_path, by_split(dict.fromkeys(SMALL.noise, 0.1)), lambda _: 3)
    without, with_, longer, longer_with = appendix_rounds.rows(SMALL)
    assert "643.4, 241.7, 128.3 instead of 224.7, 86.4, 46.8 for one hospital (at" in cost(
        SMALL, found, longer, without
    )
    said = cost(SMALL, found, longer_with, with_)
    whole = [gaussian_epsilon(3 * math.sqrt(108) / z, 0.1) for z in SMALL.noise]
    assert f"ε = {', '.join(f'{value:,.1f}' for value in whole)} instead" in said
    assert said.index("hospital") < said.index("for one intermediary")


def test_local_work_that_cannot_be_divided_by_three_is_said(tmp_path: Path) -> None:
    """Batches of 8: 24 images make 3 steps a round, three times 1; 40 make 5, three times 2."""
    found = fabricate(
        FREQUENCY, SMALL, tmp_path / "a", by_split(dict.fromkeys(SMALL.noise, 0.1)), lambda _: 3
    )
    said = local_work(SMALL, found)
    assert "differs in 5 of 6 hospitals" in said
    assert "| H24-1 | 24 | 108 | 108 | +0% |" in said
    assert "| H40-0 | 40 | 180 | 216 | +20% |" in said
    assert SIZES == (40, 24, 29, 25, 40, 83)
    thrice = make_plan("prostate", "small", changes=["local.epochs=3"])
    found = fabricate(
        FREQUENCY, thrice, tmp_path / "b", by_split(dict.fromkeys(SMALL.noise, 0.1)), lambda _: 3
    )
    assert "Every hospital does the same number of local steps" in local_work(thrice, found)


def test_who_knows_who_took_part_is_said(tmp_path: Path) -> None:
    found = fabricate(SUBSAMPLING, SMALL, tmp_path, by_split(dict.fromkeys(SMALL.noise, 0.1)), lambda _: 3)
    drawn = [one for one in found if one.cell.columns["variant"]]
    for name, words in (("known participation", "an observer may know"), ("rdp", "nobody's knowing")):
        for one in drawn:
            one.summary["epsilon"] |= {"accountant": name, "amplified": name == "rdp"}
        assert words in accountants(SMALL, found)
        assert f"«{name}»" in accountants(SMALL, found)


@pytest.mark.parametrize("name", ["appendix-subsampling", "appendix-rounds", "appendix-frequency"])
def test_they_have_names_and_the_paper_scale_has_three_seeds(name: str) -> None:
    plan: Plan = make_plan("prostate", "paper")
    study = study_named(name)
    assert study.name == name
    assert len(study.cells(plan)) == len(study.cells(PLAN)) * 3 * 3
