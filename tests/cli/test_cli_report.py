"""`silodp report` as a person meets it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import blob_cohort

from silodp import Experiment, train

TREE = {"rounds": 1, "model": {"features": 2, "levels": 1}, "intermediaries": {"rule": "fixed"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in one folder, as `silodp demo` leaves them."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        tree = TREE | {"seed": seed}
        train(Experiment.build(tree), cohort=blob_cohort(), out=folder / f"seed-{seed}", device="cpu")
    return folder


PROGRAM = """
from silodp.cli import commands as cli
from silodp.cli.report import report
if not any(found.callback is report for found in cli.app.registered_commands):
    cli.app.command()(report)
"""


def report(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of the command, run in this process: a new one would import PyTorch each time."""
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    monkeypatch.setattr(sys, "argv", ["silodp", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        names["cli"].main()
    return int(end.value.code or 0)


def test_one_run_gets_its_page_beside_it(folder: Path, tmp_path: Path) -> None:
    """A browser that is only a script notes what it was asked to open."""
    note = tmp_path / "opened"
    (tmp_path / "browser").write_text(f'#!/bin/sh\necho "$1" > {note}\n')
    (tmp_path / "browser").chmod(0o755)
    command = [sys.executable, "-c", f"{PROGRAM}\ncli.main()", "report", str(folder / "seed-0"), "--open"]
    environment = os.environ | {"BROWSER": str(tmp_path / "browser")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    page = folder / "seed-0" / "report.html"
    assert done.stdout.strip() == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert note.read_text().strip() == page.as_uri()


def test_several_runs_or_a_folder_of_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report(monkeypatch, folder / "seed-0", folder / "seed-1", folder / "seed-0") == 0
    assert capsys.readouterr().out.strip() == "report.html"
    page = (tmp_path / "report.html").read_text()
    assert "2 runs compared" in page
    assert "A seed-0" in page  # the one name of both experiments would not tell them apart
    assert report(monkeypatch, folder) == 0
    assert (folder / "report.html").read_text() == page


def test_what_cannot_be_done_ends_with_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.html").write_text("mine")
    for arguments, says in (
        ([folder / "seed-0", "--out", tmp_path / "report.html"], "no report of silodp has this name"),
        ([tmp_path / "nowhere"], "no run is there"),
        ([folder / "seed-0", "--out", tmp_path / "page.txt"], "ends in .html"),
        ([folder / "seed-0", "--out", tmp_path / "nowhere" / "page.html"], "there is no folder"),
        ([folder / "seed-0", "--out", "/proc/page.html"], "--out /proc/page.html: cannot be written"),
    ):
        assert report(monkeypatch, *arguments) == 2
        told = capsys.readouterr().err
        assert says in told
        assert len(told.strip().splitlines()) == 1
    assert (tmp_path / "report.html").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("summary.json", "{}"), ("metrics.jsonl", '{"round": 1}\n'), ("cohort.json", "{}")]
)
def test_a_damaged_run_ends_with_one_line(
    name: str,
    content: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(folder, tmp_path / "runs")
    damaged = tmp_path / "runs" / "seed-1" / name
    damaged.write_text(content)
    for chosen in (tmp_path / "runs" / "seed-1", tmp_path / "runs"):  # alone, and among others
        assert report(monkeypatch, chosen) == 2
        told = capsys.readouterr().err
        assert str(damaged) in told
        assert "restore the file" in told
        assert len(told.strip().splitlines()) == 1


def test_patients_images_only_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pixels = np.random.default_rng(0).integers(0, 255, (40, 32, 32), dtype=np.uint8)
    marked = np.zeros((40, 32, 32), np.uint8)
    marked[:, 8:20, 8:20] = 1
    np.savez(tmp_path / "files.npz", image=pixels, mask=marked, hospital=np.repeat(["Aarhus", "Bern"], 20))
    form = {"kind": "npz", "path": str(tmp_path / "files.npz")}
    tree = TREE | {"cohort": form}
    run = train(Experiment.build(tree), out=tmp_path / "run", device="cpu").folder
    warning = "This page shows patients&#39; images"
    for options, shown, says in (
        ([], False, "`silodp report --images` puts them in"),
        (["--without-images"], False, "as was asked for (--without-images)"),
        (["--images"], True, warning),
    ):
        assert report(monkeypatch, run, *options) == 0
        page = (run / "report.html").read_text()
        assert ("data:image/png" in page) is shown
        assert (warning in page) is shown
        assert says in page
        assert ("shows patients' images" in capsys.readouterr().out) is shown
        assert "Aarhus" in page
