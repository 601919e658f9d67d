"""The study of section 2.3 at its smallest: every file is there and says what the closed forms say."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Killed
from made_up_runs import npz, plan_of, rows, runs_of, smoke, tell

from silodp import InputError
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.studies import drift
from silodp.studies.columns import select
from silodp.studies.drift import Drift, train_keeping_models
from silodp.studies.running import run_study
from silodp.studies.sample_vs_client import (
    CLIENT,
    CLIPPED,
    LOCAL,
    PLAIN,
    SAMPLE,
    SAMPLE_VS_CLIENT,
    claims,
)
from silodp.studies.study import Cell, CellRun

ROUNDS, STEPS, REPETITIONS = 3, 6, 2


@pytest.fixture(scope="module")
def folder() -> Path:
    return smoke("sample-vs-client")


def run(variant: str) -> CellRun:
    """The first run of this kind."""
    return select(runs_of("sample-vs-client"), variant=variant)[0]


def cells_of(*changes: str, **more: Any) -> Sequence[Cell]:
    return SAMPLE_VS_CLIENT.cells(plan_of(SAMPLE_VS_CLIENT, *changes, **more))


def test_epsilons_are_the_closed_forms(folder: Path) -> None:
    """z = 0.5, three rounds, δ 0.1 for six hospitals and 0.01 for sixty images."""
    found = {row["variant"]: row for row in rows(folder / "results.csv")}
    assert set(found) == {PLAIN, CLIENT, CLIPPED, SAMPLE}
    client, sample = found[CLIENT], found[SAMPLE]
    rounds = math.sqrt(ROUNDS)
    assert float(client["epsilon_hospital"]) == pytest.approx(gaussian_epsilon(rounds / 0.5, 0.1))
    assert float(client["epsilon_image"]) == pytest.approx(gaussian_epsilon(2 * rounds / 0.5, 0.01))
    assert float(sample["epsilon_image"]) == pytest.approx(gaussian_epsilon(rounds / 0.5, 0.01))
    hospital = gaussian_epsilon(4 * math.sqrt(ROUNDS * 6) / 0.5, 0.1)  # 21 images: 6 batches, at most 4
    assert float(sample["epsilon_hospital"]) == pytest.approx(hospital)
    assert math.isinf(float(found[PLAIN]["epsilon_hospital"]))
    assert {row["delta_image"] for row in found.values()} == {"0.01"}


def test_one_step_drifts_as_far_as_the_law_says(folder: Path) -> None:
    """After one step from the same start the drift is the noise itself, of length √d·σ within √(2/d)."""
    steps = rows(folder / "drift.csv")
    first = [row for row in steps if row["t"] == "1"]
    assert [row["level"] for row in first] == ["sample"] * REPETITIONS + ["client"]
    for row in first:
        assert float(row["drift"]) == pytest.approx(float(row["law"]), rel=0.04)
    sample = [row for row in steps if row["level"] == "sample"]
    assert len(sample) == STEPS * REPETITIONS
    assert len({row["drift"] for row in sample}) == len(sample)  # other noise in each repetition
    last = max(float(row["law"]) for row in sample)
    assert last == pytest.approx(float(sample[0]["law"]) * math.sqrt(STEPS), rel=1e-4)
    # η·zc/K·√d with η = 1, c = 0.2, K = 4 and d = 7317; for a round zC/N·√d with C = 1, N = 6.
    assert float(sample[0]["law"]) == pytest.approx(0.5 * 0.2 / 4 * math.sqrt(7317), rel=1e-5)
    assert float(first[-1]["law"]) == pytest.approx(0.5 / 6 * math.sqrt(7317), rel=1e-5)


def test_the_table_says_what_the_files_hold(folder: Path) -> None:
    text = (folder / "table.md").read_text()
    found = {row["variant"]: row for row in rows(folder / "results.csv")}
    assert text.index("ε of a hospital") < text.index("ε of an intermediary") < text.index("ε of an image")
    for name, variant in (
        ("without privacy", PLAIN),
        ("client-level DP", CLIENT),
        ("sample-level DP", SAMPLE),
    ):
        assert f"| {name} | {float(found[variant]['test_dice']):.3f} |" in text
    assert "local sgd at 1, batches of 4" in text  # the study's own settings, not the preset's
    assert "no ε covers these two" not in text


@pytest.mark.parametrize("stopped_at", [2, 3])
def test_a_cell_that_was_stopped_goes_on_and_misses_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: int
) -> None:
    """Killed when a round's checkpoint is there but its model is not."""
    noisy, calls = run(CLIENT), []
    replacing = drift.replacing

    def dying(path: Path) -> Any:
        calls.append(path)
        if len(calls) == stopped_at:
            raise Killed
        return replacing(path)

    monkeypatch.setattr(drift, "replacing", dying)
    with pytest.raises(Killed):
        train_keeping_models(noisy.cell.experiment, tmp_path / "run", "cpu")
    train_keeping_models(noisy.cell.experiment, tmp_path / "run", "cpu")
    whole = noisy.folder / "models"
    names = [path.name for path in sorted(whole.iterdir())]
    assert names == [f"{number:04d}.pt" for number in range(1, ROUNDS + 1)]
    for name in names:
        assert torch.equal(torch.load(whole / name), torch.load(tmp_path / "run" / "models" / name))


def test_what_is_asked_for_goes_before_the_scale_and_the_four_runs_stay_apart() -> None:
    changes = ["rounds=5", "model.features=2", "clipping.rule=quantile", "privacy.noise_multiplier=0.8"]
    changes += ["checkpoint_every=3"]
    cells = cells_of(*changes, seeds=2)
    assert {cell.experiment.rounds for cell in cells} == {5}
    assert {cell.experiment.model.features for cell in cells} == {2}
    assert {cell.experiment.model.norm for cell in cells} == {"group"}
    by_variant = {cell.columns["variant"]: cell.experiment for cell in cells}
    assert {key: one.clipping.rule for key, one in by_variant.items()} == {
        PLAIN: "none", CLIENT: "fixed", CLIPPED: "fixed", SAMPLE: "none", LOCAL: "none",
    }  # fmt: skip
    assert {key: one.privacy.noise_multiplier for key, one in by_variant.items()} == {
        PLAIN: 0.0, CLIENT: 0.8, CLIPPED: 0.0, SAMPLE: 0.8, LOCAL: 0.8,
    }  # fmt: skip
    assert len({cell.folder_name for cell in cells}) == len(cells) == 2 * 4 + REPETITIONS
    assert {cell.experiment.checkpoint_every for cell in cells} == {1}
    assert {cell.experiment.seed for cell in cells} == {0, 1}
    with pytest.raises(InputError, match="this study is about noise"):
        cells_of("privacy.noise_multiplier=0")


def test_a_value_that_the_preset_has_too_is_heeded() -> None:
    """The smoke preset has 48 slices, this study takes 60."""
    assert cells_of()[0].experiment.cohort.slices == 60
    cells = cells_of("cohort.slices=48")
    assert {cell.experiment.cohort.slices for cell in cells} == {48}


def test_files_and_settings_of_its_own_optimizer_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings stand in what its runs start from: synthetic slices and SGD, whatever the preset has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cells = cells_of("local.momentum=0.5", cohort=npz(tmp_path / "a.npz"))
    assert {cell.experiment.cohort.kind for cell in cells} == {"npz"}
    assert {cell.experiment.local.model_dump()["momentum"] for cell in cells} == {0.5}


def test_one_round_has_no_drift_to_follow() -> None:
    with pytest.raises(InputError, match="rounds = 1: this study follows drift over rounds; set rounds=2"):
        cells_of("rounds=1")
    assert len(cells_of("rounds=2")) == 4 + REPETITIONS


def test_what_every_run_sets_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--set checkpoint_every: sample-vs-client has its own"):
        run_study(SAMPLE_VS_CLIENT, plan_of(SAMPLE_VS_CLIENT, "checkpoint_every=3"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_small_scale_is_the_documented_one() -> None:
    cells = cells_of(scale="small", seeds=3)
    experiment = cells[1].experiment
    assert (experiment.cohort.slices, experiment.cohort.image_size, experiment.model.features) == (240, 32, 4)
    assert (experiment.rounds, experiment.local.batch_size, experiment.local.learning_rate) == (20, 8, 1.0)
    assert (experiment.clipping.bound, cells[3].experiment.privacy.sample_clip_bound) == (1.0, 0.2)
    paper = cells_of(scale="paper")[1].experiment
    assert (paper.cohort.image_size, paper.model.features) == (128, 32)


def test_parts_of_it_are_written_too(tmp_path: Path) -> None:
    found = runs_of("sample-vs-client")
    for variant, needed in ((LOCAL, "sample-level DP | 6 local steps"), (SAMPLE, "| sample-level DP |")):
        text, _ = tell(SAMPLE_VS_CLIENT, tmp_path, plan_of(SAMPLE_VS_CLIENT), select(found, variant=variant))
        assert needed in text
        assert "client-level DP |" not in text


@pytest.mark.parametrize("client", [10.0, 80.0])
def test_claims_follow_from_the_numbers(client: float) -> None:
    found = {variant: run(variant) for variant in (CLIENT, SAMPLE)}
    for variant, epsilon in ((CLIENT, client), (SAMPLE, 40.0)):
        content = json.loads(json.dumps(found[variant].summary))
        content["epsilon"]["hospital"] = epsilon
        found[variant].__dict__["summary"] = content
    drifts = [
        Drift("client", "round", [[1.0, 4.0]], [1.0, 2.0], [0.5, 1.0]),
        Drift("sample", "local step", [[1.0, math.sqrt(2)]], [1.0, math.sqrt(2)], [0.5, 1.0]),
    ]
    hospital, image, far, near = claims(list(found.values()), drifts)
    assert (hospital.holds, hospital.measured) == (
        client < 40,
        f"{client:.1f} against 40.0, which is {40 / client:.3g} times it",
    )
    assert image.holds is True
    assert (far.holds, near.holds) == (False, True)
    assert far.measured.startswith(
        "t^2.00 in 2 rounds; at the end 2.00 times the √t law and 4 times the distance"
    )
    assert [claim.text for claim in claims([found[CLIENT]], [])] == []


def test_the_exponent_is_that_of_a_power_law() -> None:
    for power in (0.5, 0.8):
        paths = [[factor * number**power for number in range(1, 30)] for factor in (1.0, 3.0)]
        assert Drift("sample", "round", paths, paths[0], paths[0]).exponent == pytest.approx(power)
