"""Somebody's own files, from `silodp data check` to a report, with what it prints and nothing else."""

import re
import shlex
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from conftest import command_with_cache as silodp
from conftest import succeed
from numpy.typing import NDArray
from PIL import Image

from silodp import Experiment
from silodp.runs.folder import read_experiment


def said(output: str, start: str) -> list[str]:
    """The command in the line that starts so, without «silodp»."""
    (line,) = [line for line in output.splitlines() if line.startswith(start)]
    _, *words = shlex.split(line.removeprefix(start))
    return words


def goes_all_the_way(tmp_path: Path, *command: str) -> str:
    """Runs the check, the command that it prints for a few rounds, and the report; what the check said."""
    checked = succeed(*command, cwd=tmp_path, how=silodp)
    succeed(*said(checked.stdout, "to train on it: "), "--set", "rounds=3", cwd=tmp_path, how=silodp)
    (run,) = (tmp_path / "runs").iterdir()
    succeed("report", run, cwd=tmp_path, how=silodp)
    assert (run / "report.html").stat().st_size > 1000
    return checked.stdout


def save(path: Path, pixels: NDArray[Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def blob(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    y, x = rng.integers(6, height - 6), rng.integers(6, width - 6)
    yy, xx = np.mgrid[:height, :width]
    return (((yy - y) ** 2 + (xx - x) ** 2) < 16).astype(np.uint8)


@pytest.fixture
def fundus(tmp_path: Path) -> Path:
    """Colour photographs of three sources: other sizes, endings, names of masks and values in them."""
    rng = np.random.default_rng(0)
    for hospital, (size, form, mask_name, value) in {
        "Aarhus": ((36, 40), "png", "{}.png", 255),
        "Bern": ((33, 44), "jpg", "{}-Disc-Avg.png", 1),
        "Cork": ((32, 32), "ppm", "mask_{}.gif", 255),
    }.items():
        for number in range(6):
            disc = blob(rng, *size)
            photo = rng.integers(0, 60, (*size, 3)).astype(np.uint8)
            photo[..., 0] += 90 * disc + 60
            save(tmp_path / f"fundus/{hospital}/images/eye{number}.{form}", photo)
            save(tmp_path / f"fundus/{hospital}/masks" / mask_name.format(f"eye{number}"), disc * value)
    return tmp_path


def test_colour_fundus_photographs_with_masks_of_several_sources(fundus: Path) -> None:
    text = goes_all_the_way(fundus, "data", "check", "fundus")
    assert "masks known by" in text
    assert "the ending -Disc-Avg (6)" in text
    assert "the beginning mask_ (6)" in text
    assert "read as 32 × 32 in colour" in text
    assert "masks of Aarhus hold 0, 255" in text
    assert "masks of Bern hold 0, 1" in text
    assert re.search(r"Cork .* \d+\.\d\d%", text)
    assert "note: privacy.delta = 0.1 by the paper's rule for 3 hospitals" in text
    assert read_experiment(fundus / "runs/fundus-1").task == "segmentation"


def test_one_folder_too_high_names_the_path_to_give(fundus: Path) -> None:
    (fundus / "above").mkdir()
    (fundus / "fundus").rename(fundus / "above/fundus")
    refused = silodp("data", "check", "above", cwd=fundus)
    assert refused.returncode == 2
    assert "one folder too high" in refused.stderr
    assert "give cohort.path=above/fundus" in refused.stderr


def test_thin_vessels_with_gif_masks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(21, 33):
        vessel = np.zeros((37, 35), np.uint8)
        vessel[np.arange(37), np.clip(rng.integers(5, 30) + np.arange(37) // 9, 0, 34)] = 255
        photo = rng.integers(0, 90, (37, 35, 3)).astype(np.uint8)
        photo[..., 1] += vessel // 3
        save(tmp_path / f"drive/images/{number}_training.tif", photo)
        save(tmp_path / f"drive/1st_manual/{number}_manual1.gif", vessel)
    text = goes_all_the_way(tmp_path, "data", "check", "drive")
    assert "masks known by _manual1 in place of _training (12)" in text
    assert "the files name no hospital: 2 are simulated" in text
    assert "masks hold 0, 255" in text


def test_ct_pictures_with_a_csv_of_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["filename,diagnosis,patient,hospital"]
    for number in range(24):
        ill = number % 2
        pixels = rng.integers(0, 90, (34 + number, 33)).astype(np.uint8)
        pixels[10:16, 10:16] += 100 * ill
        save(tmp_path / f"ct/slices/{number}.png", np.repeat(pixels[..., None], 3, axis=-1))
        lines.append(f"{number}.png,{'bleeding' if ill else 'normal'},p{number // 2},{'AB'[number % 4 // 2]}")
    (tmp_path / "ct/labels.csv").write_text("\n".join(lines) + "\n")
    text = goes_all_the_way(tmp_path, "data", "check", "ct")
    assert "images in 2 hospitals; classes from csv files (labels.csv)" in text
    assert "24 sizes from 34 × 33 to 57 × 33" in text
    assert "read as 32 × 32 in grey" in text
    assert "add --set cohort.classes=2" in text
    assert read_experiment(tmp_path / "runs/ct-1").task == "classification"


def test_small_volumes_with_two_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in ("Aarhus", "Bern"):
        for number in range(4):
            labels = np.zeros((35, 50, 3), np.uint8)
            labels[10:20, 10:20], labels[20:26, 10:20] = 1, 2
            volume = rng.normal(0, 20, labels.shape) + 60 * labels
            for kind, values in (("imagesTr", volume.astype(np.float32)), ("labelsTr", labels)):
                path = tmp_path / f"zones/{site}/{kind}/case{number}.nii.gz"
                path.parent.mkdir(parents=True, exist_ok=True)
                nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
    asked = silodp("data", "check", "zones", cwd=tmp_path)
    assert asked.returncode == 1
    assert "the masks of Aarhus hold 0, 1, 2, and so 1 more, and not 0 with one more" in asked.stdout
    ways = [line for line in asked.stdout.splitlines() if line.startswith("say it with: ")]
    assert len(ways) == 2
    _, *command = shlex.split(ways[0].removeprefix("say it with: "))
    text = goes_all_the_way(tmp_path, *command)
    assert "read as 32 × 32 in grey" in text  # not 256 × 256
    assert "marked 2" in text


def test_with_skip_unreadable_the_check_says_what_it_would_train_on(fundus: Path) -> None:
    (fundus / "fundus/Bern/masks/eye1-Disc-Avg.png").write_bytes(b"")
    bad = silodp("data", "check", "fundus", cwd=fundus)
    assert bad.returncode == 1
    assert "    Bern/masks/eye1-Disc-Avg.png" in bad.stdout
    assert "cohort.skip_unreadable=true" in bad.stdout.splitlines()[-1]
    skipped = silodp("data", "check", "fundus", "--set", "skip_unreadable=true", cwd=fundus)
    assert skipped.returncode == 0
    assert "1 thing cannot be used and will be left out; the 17 images above remain" in skipped.stdout
    command = said(bad.stdout, "to train without what cannot be used: ")
    assert sorted(command) == sorted(said(skipped.stdout, "to train on it: "))
    succeed(*command, "--set", "rounds=1", cwd=fundus, how=silodp)


def test_sizes_that_the_network_cannot_halve_are_said_otherwise(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    masks = np.stack([blob(rng, 35, 50) for _ in range(12)])
    np.savez(
        tmp_path / "a b.npz", image=rng.integers(0, 90, (12, 35, 50), dtype=np.uint8) + masks, mask=masks
    )
    checked = silodp("data", "check", "a b.npz", cwd=tmp_path)
    command = said(checked.stdout, "to train on it: ")
    assert {"cohort.image_size=32", "cohort.path=a b.npz"} <= set(command)
    forty = silodp("data", "check", "a b.npz", "--set", "image_size=40", cwd=tmp_path)
    assert "model.levels=3" in said(forty.stdout, "to train on it: ")
    succeed(*said(forty.stdout, "to train on it: "), "--set", "rounds=1", cwd=tmp_path, how=silodp)
    assert (tmp_path / "runs/a-b-1").is_dir()


def test_the_cache_is_shown_and_cleared(fundus: Path) -> None:
    assert "0 entries, 0.0 MB" in silodp("cache", cwd=fundus).stdout
    silodp("data", "check", "fundus", cwd=fundus)
    shown = silodp("cache", cwd=fundus).stdout
    assert "folder: 18 images of 32 × 32, 3 channels; for fundus" in shown
    assert "1 entries, " in shown
    (fundus / "cache/silodp/notes.txt").write_text("mine")
    cleared = silodp("cache", "--clear", cwd=fundus).stdout
    assert "removed 1 entries" in cleared
    assert "0 entries" in silodp("cache", cwd=fundus).stdout
    assert (fundus / "cache/silodp/notes.txt").exists()
    assert not list((fundus / "cache/silodp").rglob("*.bin"))


def test_a_run_on_own_files_is_named_after_them_unless_it_has_a_name() -> None:
    loaded = Experiment.load("prostatex", ["cohort.path=/x/fundus"])
    assert loaded.name == "fundus"
    assert loaded.description == "Segmentation on fundus, with the settings of prostatex"
    assert Experiment.load("prostatex", ["cohort.path=/x/head ct.npz"]).name == "head-ct"
    named = Experiment.load("prostatex", ["cohort.path=/x/fundus", "name=mine", "description=My own"])
    assert (named.name, named.description) == ("mine", "My own")
    assert Experiment.load("prostatex").name == "prostatex"
