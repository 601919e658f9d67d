"""`silodp data …` as a person meets it; one call of each command in a process of its own."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import command_with_cache as silodp
from conftest import in_a_process, succeed
from PIL import Image

from silodp.cli.suggestion import explicit_settings, options
from silodp.cohorts.kinds import CohortSettings
from silodp.experiment import cohort_at
from silodp.runs.wording import describe_baseline

HOSPITALS = ("Aarhus", "Bern", "Cork")
SMALL = ("rounds=1", "model.features=2", "model.levels=1", "cohort.image_size=32")
TINY = [word for change in SMALL for word in ("--set", change)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three hospitals with pictures and masks."""
    rng = np.random.default_rng(0)
    for hospital in HOSPITALS:
        for kind in ("images", "masks"):
            (tmp_path / "files" / hospital / kind).mkdir(parents=True)
        for number in range(10):
            mask = np.zeros((32, 32), np.uint8)
            top, left = rng.integers(4, 18, 2)
            mask[top : top + 8, left : left + 8] = 255
            pixels = (rng.integers(0, 80, (32, 32)) + mask // 2).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "files" / hospital / "images" / f"{number}.png")
            Image.fromarray(mask).save(tmp_path / "files" / hospital / "masks" / f"{number}.png")
    return tmp_path / "files"


def test_check_then_train_with_what_it_says(files: Path, tmp_path: Path) -> None:
    checked = silodp("data", "check", "files", "--set", "image_size=32", cwd=tmp_path, how=in_a_process)
    assert checked.returncode == 0, checked.stderr + checked.stdout
    for hospital in HOSPITALS:
        assert hospital in checked.stdout
    assert "30 images that can be used, of 32 × 32 (30) pixels" in checked.stdout
    assert "6 / 2 / 2" in checked.stdout
    (line,) = [line for line in checked.stdout.splitlines() if line.startswith("to train on it: ")]
    _, *command = shlex.split(line.removeprefix("to train on it: "))
    trained = succeed(*command, *TINY, "--out", "run", cwd=tmp_path, how=silodp)
    assert "data: folder, 30 images" in trained.stdout
    assert "simulated" not in trained.stdout.split("ε for a hospital")[0]
    said = json.loads((tmp_path / "run/cohort.json").read_text())
    assert list(said["hospitals"]) == list(HOSPITALS)
    assert len(said["files"]) == 60


def test_check_names_every_bad_file_and_fails(files: Path, tmp_path: Path) -> None:
    whole = (files / "Bern/images/3.png").read_bytes()
    (files / "Bern/images/3.png").write_bytes(whole[:60])
    Image.fromarray(np.zeros((32, 40), np.uint8)).save(files / "Cork/masks/1.png")
    (files / "Aarhus/masks/7.png").unlink()
    checked = silodp("data", "check", "files", cwd=tmp_path)
    assert checked.returncode == 1
    assert "3 things cannot be used" in checked.stdout
    for name in ("Bern/images/3.png", "Cork/images/1.png", "Aarhus/images/7.png"):
        assert name in checked.stdout
    refused = silodp("run", "prostate-small", "--set", "cohort.kind=folder", "--set", "cohort.path=files",
                     "--out", "run", cwd=tmp_path)  # fmt: skip
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()[-1:]) == 1
    assert "3 things cannot be used" in refused.stderr
    assert not (tmp_path / "run").exists()

    as_json = silodp("data", "check", "files", "--json", cwd=tmp_path)
    assert as_json.returncode == 1
    assert len(json.loads(as_json.stdout)["problems"]) == 3


def test_preview_draws_a_page_and_a_picture(files: Path, tmp_path: Path) -> None:
    for name in ("page.html", "sheet.png"):
        done = succeed("data", "preview", "files", "--out", name, cwd=tmp_path, how=silodp)
        assert "shows patients' images" in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert all(hospital in page for hospital in HOSPITALS)
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 300


def test_prepare_then_train_without_the_files(files: Path, tmp_path: Path) -> None:
    done = succeed(
        "data", "prepare", "files", "--out", "ready", "--set", "image_size=32", cwd=tmp_path, how=silodp
    )
    assert "30 images of (1, 32, 32) in ready" in done.stdout
    settings = done.stdout.splitlines()[-1].removeprefix("train on them with: ").split()
    files.rename(tmp_path / "gone")
    trained = succeed(
        "run", "prostate-small", *settings, *TINY, "--json", "--out", "run", cwd=tmp_path, how=silodp
    )
    assert json.loads(trained.stdout)["cohort"]["hospitals"] == 3
    succeed("data", "check", "ready", cwd=tmp_path, how=silodp)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere"], "nowhere: nothing is there"),
        (["check", "files", "--set", "hospital=3"], "cohort.hospital: no such setting; there are kind, "),
        (["check", "files", "--set", "kind=tiff"], "cohort.kind = 'tiff': "),
        (["check", "files", "--set", "kind=prostate"], "cohort.path = files: "),
        (["preview", "files", "--out", "page.pdf"], "--out page.pdf: "),
        (["prepare", "files", "--out", "files"], "--out files: exists already"),
    ],
)
def test_a_mistake_is_one_line(files: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = silodp("data", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_what_check_says_to_train_with_is_what_it_was_told() -> None:
    told = CohortSettings.of(
        kind="folder", path="my 'scans'", partition="sizes", sizes=(3, 2), patient_pattern=r"(p\d+)",
        skip_unreadable=True,
    )  # fmt: skip
    words = shlex.split(options({f"cohort.{name}": value for name, value in explicit_settings(told).items()}))
    changes = [word for word in words if word != "--set"]
    assert len(words) == 2 * len(changes)
    assert CohortSettings.of(**cohort_at(Path("elsewhere"), changes)) == told


def test_a_model_is_held_against_slice_position() -> None:
    def said(auc: float) -> str:
        summary = {"cohort": {"position_auc": 0.957}, "test": {"last": {"mean": {"auc": auc}}}}
        return describe_baseline(summary)

    assert said(0.99).endswith("AUC 0.957; the model's 0.990 is above")
    assert "the model's 0.957 is NOT above" in said(0.957)
    assert describe_baseline({"cohort": {}}) == ""
