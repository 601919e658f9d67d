"""`silodp report` as a person meets it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import blob_cohort, command_line, in_a_process, noting_browser, succeed

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


def test_one_run_gets_its_page_beside_it(folder: Path, tmp_path: Path) -> None:
    done = succeed("report", folder / "seed-0", "--open", how=in_a_process, **noting_browser(tmp_path))
    page = folder / "seed-0" / "report.html"
    assert done.stdout.strip() == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()


def test_several_runs_or_a_folder_of_them(folder: Path, tmp_path: Path) -> None:
    done = command_line("report", folder / "seed-0", folder / "seed-1", folder / "seed-0", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "2 runs compared" in page
    assert "A seed-0" in page  # the one name of both experiments would not tell them apart
    assert command_line("report", folder).returncode == 0
    assert (folder / "report.html").read_text() == page


def test_what_cannot_be_done_ends_with_one_line(folder: Path, tmp_path: Path) -> None:
    """Why a place is refused, or a run, is tested in tests/report."""
    (tmp_path / "report.html").write_text("mine")
    damaged = shutil.copytree(folder, tmp_path / "runs") / "seed-1" / "summary.json"
    damaged.write_text("{}")
    for arguments, says in (
        ([folder / "seed-0", "--out", tmp_path / "report.html"], "no report of silodp has this name"),
        ([folder / "seed-0", "--out", "/proc/page.html"], "--out /proc/page.html: cannot be written"),
        ([tmp_path / "nowhere"], "no run is there"),
        ([damaged.parent], f"{damaged}: experiment is missing; restore the file"),
        ([tmp_path / "runs"], f"{damaged}: experiment is missing; restore the file"),  # among others
    ):
        done = command_line("report", *arguments)
        assert done.returncode == 2
        assert says in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert (tmp_path / "report.html").read_text() == "mine"


def test_patients_images_only_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pixels = np.random.default_rng(0).integers(0, 255, (40, 32, 32), dtype=np.uint8)
    marked = np.zeros((40, 32, 32), np.uint8)
    marked[:, 8:20, 8:20] = 1
    np.savez(tmp_path / "files.npz", image=pixels, mask=marked, hospital=np.repeat(["Aarhus", "Bern"], 20))
    form = {"kind": "npz", "path": str(tmp_path / "files.npz")}
    run = train(Experiment.build(TREE | {"cohort": form}), out=tmp_path / "run", device="cpu").folder
    warning = "This page shows patients&#39; images"
    for options, shown, says in (
        ([], False, "`silodp report --images` puts them in"),
        (["--without-images"], False, "as was asked for (--without-images)"),
        (["--images"], True, warning),
    ):
        done = command_line("report", run, *options)
        assert done.returncode == 0
        page = (run / "report.html").read_text()
        assert ("data:image/png" in page) is shown
        assert (warning in page) is shown
        assert says in page
        assert ("shows patients' images" in done.stdout) is shown
        assert "Aarhus" in page
