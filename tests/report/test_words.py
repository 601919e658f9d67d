"""What the page says of a run in words, and which curves it draws of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import blob_cohort

from silodp import Experiment, train
from silodp.report import words
from silodp.report.curves import training_charts
from silodp.report.page import compose
from silodp.report.reading import Run, find_runs, read_runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of four hospitals two train, each in three of four rounds; v and C are steered by un-noised norms."""
    tree = {
        "rounds": 2,
        "model": {"features": 2, "levels": 1},
        "participation": {"members": 2, "rule": "poisson", "rate": 0.75},
        "intermediaries": {"rule": "adaptive"},
        "clipping": {"rule": "median"},
    }
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(Experiment.build(tree), cohort=blob_cohort(4), out=folder, device="cpu")
    return read_runs([folder])[0]


def test_who_trained_and_what_no_epsilon_covers(run: Run) -> None:
    text = " ".join(words.headline(run))
    assert text.startswith("2 of 4 hospitals trained one U-Net together to draw outlines")
    assert "something was used without noise that no ε covers: median norm and noise ratio." in text
    html = compose([run]).html
    assert "whether they are real, silodp cannot know" in html
    assert "in each round hospitals are drawn (poisson, 0.75)" in html


def test_the_page_says_that_it_shows_what_no_epsilon_covers(run: Run) -> None:
    """C and v of this run are un-noised statistics, and the page draws both over the rounds."""
    html = compose([run]).html
    assert "This page shows numbers that no ε covers" in html
    for shown in (
        "the clip bound C of each round, from un-noised norms",
        "estimated from un-noised norms",
        "by hospital",
        "training loss",
    ):
        assert shown in html
    told = run.experiment.change(
        clipping__rule="quantile", intermediaries={"rule": "fixed"}, diagnostics=False
    )
    covered = words.shown_without_cover(replace(run, experiment=told))
    assert not any("norms" in text or "loss" in text for text in covered)
    assert any("metrics" in text for text in covered)  # these are never covered


def test_lambda_is_compared_with_the_hospitals_that_take_part(run: Run) -> None:
    """The paper's rule steers it to 1/N; of two members 1.5 are expected in a round."""
    charts, missing = training_charts(run)
    (chart,) = [chart for chart in charts if chart.title.startswith("λ")]
    assert chart.levels == ((pytest.approx(1 / 1.5), "1/N = 0.667"),)
    assert missing == []


def test_notes_name_no_file() -> None:
    cohort = {
        "notes": ["left out: 3 of 12 (scans/12345.dcm, MR0007)", "images without a mask: 4"],
        "files": {"scans/12345.dcm": "hash", "3": "hash", "left": "hash"},
        "members": {"Bern": {"train": ["MR0007#2"], "test": ["4"]}},
    }
    assert words.notes(cohort) == ["Left out: 3 of 12.", "Images without a mask: 4."]


def test_a_folder_of_runs_stands_for_them(run: Run, tmp_path: Path) -> None:
    assert find_runs([run.folder.parent]) == [run.folder]
    assert find_runs([run.folder, run.folder.parent / "." / "run"]) == [run.folder]
    assert find_runs([tmp_path]) == [tmp_path]  # which is then refused by its name


def test_many_runs_have_letters(run: Run) -> None:
    labels = [found.label for found in read_runs([run.folder] * 28)]
    assert labels[:2] + labels[25:] == ["A", "B", "Z", "AA", "AB"]
    assert read_runs([run.folder])[0].label == ""
