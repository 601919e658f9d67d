"""What a model is worth at each ε of a hospital: the ε is the same for all, and a start is no training."""

import json
import math
from pathlib import Path

import pytest
from made_up_runs import TEST, made_up, npz, plan_of, rows, smoke, tell

from silodp import InputError
from silodp.studies.hospital_privacy import ICH, LEVELS, PROSTATE
from silodp.studies.running import run_study
from silodp.studies.study import CellRun, Plan
from silodp.studies.whole_hospital import START_PRODUCT


def test_a_hospital_is_equally_safe_with_every_method() -> None:
    found = rows(smoke("hospital-privacy-ich") / "results.csv")
    private = [row for row in found if row["epsilon_asked"] == "8.0"]
    assert [row["method"] for row in private] == ["recipe", "fedavg", "narrow", "split"]
    for row in private:
        assert 7.99 < float(row["epsilon_hospital"]) <= 8
        assert row["covers_everything"] == "True"
        assert int(row["v"]) == (2 if row["method"] == "split" else 1)
    numbers = {row["method"]: int(row["parameters"]) for row in private}
    assert numbers["fedavg"] == numbers["split"] > 10 * numbers["narrow"] > 100 * numbers["recipe"]


def test_at_epsilon_zero_nothing_is_trained_and_nothing_says_so() -> None:
    folder = smoke("hospital-privacy-ich")
    start, *others = rows(folder / "results.csv")
    assert (start["epsilon_asked"], start["rounds"], start["epsilon_hospital"]) == ("0.0", "0", "0.0")
    assert (start["v"], start["parameters"], start["best_auc"]) == ("", "", "")
    assert all(row["rounds"] == "2" for row in others)
    place = folder.parent / "runs" / start["run"]
    assert [path.name for path in place.iterdir()] == [START_PRODUCT]  # no ledger, no model, no summary
    product = json.loads((place / START_PRODUCT).read_text())
    assert product["test"]["round"] == 0
    assert (product["start"]["name"], product["start"]["origin"]) == ("head", "generated")
    assert (
        f"| 0 | 0 | {float(start['test_auc']):.3f} (the start, untrained) | – | – | – |"
        in (folder / "table.md").read_text()
    )


def test_the_start_alone_is_no_study_and_the_prostates_start_fits_its_network(tmp_path: Path) -> None:
    plan = plan_of(PROSTATE)
    with pytest.raises(InputError, match="the start alone is not a study"):
        run_study(PROSTATE, plan, tmp_path, only="recipe-start", jobs=1, device="cpu")
    (product,) = tmp_path.glob(f"runs/*/{START_PRODUCT}")
    assert json.loads(product.read_text())["start"]["name"] == "pelvis-8"


def test_levels() -> None:
    """At small scale, to end in half an hour, only the recipe has all."""
    fewer = ["cohort.slices=96", "cohort.image_size=32"]  # drawn sooner
    cells = PROSTATE.cells(plan_of(PROSTATE, *fewer, scale="small"))
    asked = {
        method: [cell.columns["epsilon_asked"] for cell in cells if cell.columns["method"] == method]
        for method in ("recipe", "fedavg", "narrow", "split")
    }
    assert asked["recipe"] == [0.0, *LEVELS, math.inf]
    assert asked["fedavg"] == asked["narrow"] == [1.0, 8.0, 16.0, math.inf]
    assert asked["split"] == [1.0, 8.0, 16.0]
    by_name = {cell.experiment.name: cell.experiment for cell in cells}
    assert by_name["fedavg-eps8-seed0"].local.optimizer == "adam"
    assert by_name["fedavg-eps8-seed0"].model.start is None
    assert by_name["fedavg-no-privacy-seed0"].clipping.rule == "none"
    assert by_name["split-eps8-seed0"].intermediaries.count == 4  # as many as the smallest hospital allows


def test_what_is_typed_is_for_every_run() -> None:
    changes = ["rounds=3", "local.learning_rate=0.2", "local.momentum=0.5"]
    cells = ICH.cells(plan_of(ICH, *changes))
    experiments = {cell.experiment.name: cell.experiment for cell in cells}
    assert {one.rounds for one in experiments.values()} == {3}
    assert {one.local.learning_rate for one in experiments.values()} == {0.2}
    assert experiments["recipe-eps8-seed0"].local.model_dump()["momentum"] == 0.5  # Adam has none


def test_files_are_seen_at_the_size_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan = plan_of(PROSTATE, scale="small", cohort=npz(tmp_path / "a.npz", size=96))
    cells = {cell.experiment.name: cell for cell in PROSTATE.cells(plan)}
    assert {cell.experiment.cohort.model_dump()["image_size"] for cell in cells.values()} == {96}
    assert cells["fedavg-eps8-seed0"].experiment.local.learning_rate == 1e-2  # of the preset for such files
    assert cells["recipe-eps8-seed0"].data == plan.data != ""


def invented(plan: Plan, out: Path, start: float, scores: dict[str, float]) -> list[CellRun]:
    """Every cell as if it had run: a score a method at every ε, and 0.9 without noise."""
    found = []
    for cell in PROSTATE.cells(plan):
        epsilon, place = float(cell.columns["epsilon_asked"]), out / "runs" / cell.folder_name
        if cell.product == START_PRODUCT:
            place.mkdir(parents=True)
            origin = {"name": "pelvis-8", "origin": "generated", "digest": ""}
            test = TEST | {"round": 0, "mean": {"dice": start, "iou": start}}
            (place / START_PRODUCT).write_text(json.dumps({"start": origin, "test": test}))
            found.append(CellRun(cell, place))
            continue
        dice = scores[str(cell.columns["method"])] if epsilon < math.inf else 0.9
        spent = {"hospital": epsilon if epsilon < math.inf else None, "covers_everything": True}
        test = {"dice": dice, "iou": dice}
        found.append(made_up(out, cell, [{}], test=test, epsilon=spent, parameters=1234))
    return found


def test_claims_follow_from_the_numbers(tmp_path: Path) -> None:
    plan = plan_of(PROSTATE)
    scores = {"recipe": 0.7, "fedavg": 0.1, "narrow": 0.5, "split": math.nan}
    found = invented(plan, tmp_path / "a", 0.5, scores)
    text, claims = told = tell(PROSTATE, tmp_path, plan, found)
    assert told.holds == [True, False, False, None, True]
    assert [claim.measured for claim in claims] == [
        "1 of 1: +0.200 at ε = 8",
        "0 of 1: -0.400 at ε = 8",
        "0 of 1: +0.000 at ε = 8",
        "0 of 0: undefined at ε = 8",
        "the recipe at ε = 8 (0.700)",
    ]
    assert "| 8 | 8.0 | 0.700 | 0.100 | 0.500 | – (0 of 1 seeds defined) |" in text
    assert "1,234" in text
    assert "images of the generator that drew this cohort" in text
    other = invented(plan, tmp_path / "b", 0.8, scores | {"narrow": 0.75})
    claims = PROSTATE.results(plan, other).claims
    assert (claims[0].holds, claims[0].measured) == (False, "0 of 1: -0.100 at ε = 8")
    assert (claims[-1].holds, claims[-1].measured) == (False, "DP-FedAvg, narrow network at ε = 8 (0.750)")
    part = tell(PROSTATE, tmp_path, plan, other[1:])  # as --only may leave it
    assert "untrained" not in part.text
    assert part.claims == claims[-1:]
