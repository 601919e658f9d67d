"""Is federation worth it for a hospital? Each model at home, and what is said of the differences."""

import json
import math
import shutil
from pathlib import Path

import pytest
from made_up_runs import plan_of, rows, runs_of, smoke, tell

from silodp import InputError
from silodp.runs.personal import Personal
from silodp.studies import hospital_privacy
from silodp.studies.whole_hospital import product_of, train_and_personalise
from silodp.studies.worth_it import (
    ICH,
    PROSTATE,
    Home,
    cells,
    claims,
    note_on_few_hospitals,
    numbers,
    tuning_of,
)
from silodp.tasks.scores import Scores

SMOKE = plan_of(ICH)
PRODUCT = product_of(tuning_of(SMOKE))


def test_every_hospital_has_its_four_figures() -> None:
    folder = smoke("worth-it-ich")
    found = rows(folder / "hospitals.csv")
    assert [row["hospital"] for row in found] == ["hospital-01", "hospital-02", "hospital-03"]
    released, federated = rows(folder / "results.csv")
    assert 7.99 < float(released["epsilon_hospital"]) <= 8
    assert (federated["epsilon_hospital"], int(federated["parameters"]) > 100_000) == ("inf", True)
    for run, column in ((released, "released"), (federated, "federated")):
        summary = json.loads((folder.parent / "runs" / run["run"] / "summary.json").read_text())
        tested = summary["test"]["last"]["hospitals"]
        assert [float(row[column]) for row in found] == pytest.approx(
            [tested[row["hospital"]]["auc"] for row in found]
        )
    text = (folder / "table.md").read_text()
    gain = sum(float(row["personal"]) - float(row["alone"]) for row in found) / 3
    assert f"| {gain:+.3f} |" in text


def test_it_goes_on_with_the_hospital_at_which_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runs_of("worth-it-ich")[0]
    cell = one.cell
    shutil.copytree(one.folder, tmp_path / "run")
    (tmp_path / "run" / PRODUCT).unlink()
    asked: list[str] = []

    def tuned(run: Path, hospital: str, *_: object, **__: object) -> Personal:
        asked.append(hospital)
        if asked == ["hospital-01", "hospital-02"]:
            raise KeyboardInterrupt
        score = Scores({"auc": 0.5 if len(asked) > 1 else math.nan}, {}, 3, 3)
        return Personal(hospital, dict.fromkeys(("alone", "released", "personal"), score), {})

    monkeypatch.setattr("silodp.runs.personal.personalise", tuned)
    with pytest.raises(KeyboardInterrupt):
        train_and_personalise(cell.experiment, tmp_path / "run", "cpu", tuning_of(SMOKE))
    assert not (tmp_path / "run" / PRODUCT).exists()
    train_and_personalise(cell.experiment, tmp_path / "run", "cpu", tuning_of(SMOKE))
    assert asked == ["hospital-01", "hospital-02", "hospital-02", "hospital-03"]
    written = json.loads((tmp_path / "run" / PRODUCT).read_text())["hospitals"]
    assert written["hospital-01"]["personal"] == {"auc": None}
    assert written["hospital-03"]["personal"] == {"auc": 0.5}
    assert not list((tmp_path / "run").glob("*so-far*"))


def test_federations_of_as_many_hospitals_as_there_are() -> None:
    """Where all of them train, the run is that of hospital-privacy."""
    ich, prostate = (plan_of(study, scale="small") for study in (ICH, PROSTATE))
    assert (numbers(ich), numbers(prostate), numbers(SMOKE)) == ([3, 6, 10, 20], [3, 6], [3])
    assert numbers(plan_of(ICH, "cohort.hospitals=8", scale="small")) == [3, 6, 8]
    with pytest.raises(InputError, match="cohort: 2 hospitals; worth-it needs 3 or more"):
        numbers(plan_of(ICH, "cohort.hospitals=2"))
    runs = [cell for cell in cells(ich) if cell.columns["method"] == "recipe"]
    assert [cell.experiment.participation.members for cell in runs] == [3, 6, 10, None]
    shared = {cell.folder_name for cell in hospital_privacy.cells(SMOKE)}
    assert cells(SMOKE)[0].folder_name in shared


def homes(*gains: tuple[int, float]) -> list[Home]:
    """Hospitals in federations of so many that gain so much."""
    scores = {"alone": 0.5, "released": 0.4, "federated": 0.9}
    return [{"members": members, **scores, "personal": 0.5 + gain} for members, gain in gains]


def test_claims_follow_from_the_numbers() -> None:
    by_mean, each = claims(SMOKE, homes((3, -0.1), (3, -0.3), (6, 0.2), (6, 0.0), (6, math.nan)))
    assert (by_mean.holds, by_mean.measured) == (False, "1 of 2: -0.200 at N = 3, +0.100 at N = 6")
    assert (each.holds, each.measured) == (
        False,
        "of 4, counted in each run, 1 gain, 2 lose and 1 have the same, from -0.300 to +0.200",
    )
    assert [claim.holds for claim in claims(SMOKE, homes((3, 0.1)))] == [True, True]
    assert [claim.holds for claim in claims(SMOKE, homes((3, 0.0)))] == [False, False]
    assert [claim.holds for claim in claims(SMOKE, homes((3, math.nan)))] == [None, None]


def test_a_part_of_the_study_and_a_cohort_of_few_hospitals_say_so(tmp_path: Path) -> None:
    found = runs_of("worth-it-ich")
    text, _ = tell(ICH, tmp_path, SMOKE, found[:1])  # without the federation that protects nobody
    assert "| – |" in text
    with pytest.raises(InputError, match="includes none of the runs at ε = 8"):
        ICH.results(SMOKE, found[1:])
    assert "This cohort has 6 hospitals" in note_on_few_hospitals(plan_of(PROSTATE, scale="small"))[0]
