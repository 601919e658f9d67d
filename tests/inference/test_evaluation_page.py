"""The page of a model on new labelled images: figures, words, and what is on it only if asked for."""

import csv
import html
import json
import re
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import command_line
from discs_run import SIDE, discs

from silodp import Experiment, train
from silodp.report import make_report

TREE = {
    "name": "mine", "rounds": 2, "intermediaries": {"rule": "fixed", "count": 2},
    "clipping": {"rule": "fixed", "bound": 0.5}, "privacy": {"noise_multiplier": 1.0},
}  # fmt: skip
NEW = "new <b>&.npz"


def trained(place: Path, task: str, network: dict[str, Any], **arrays: Any) -> Path:
    np.savez(place / "data.npz", hospital=np.array(["a", "b"])[np.arange(40) % 2], **arrays)
    files = {"kind": "npz", "path": str(place / "data.npz"), "cache": str(place / "cache")}
    tree = TREE | {"task": task, "cohort": files, "model": network}
    return train(Experiment.build(tree), out=place / "run", device="cpu").folder


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that outlines discs; labelled images of three other hospitals lie beside it."""
    place = tmp_path_factory.mktemp("segmented")
    images, masks = discs(40, np.random.default_rng(0))
    run = trained(place, "segmentation", {"features": 2, "levels": 1}, image=images, mask=masks)
    images, masks = discs(24, np.random.default_rng(1))
    patient = np.arange(24) // 2
    hospital = np.array(["x", "<i>y", "z"])[patient % 3]
    np.savez(place / NEW, image=images, mask=masks, hospital=hospital, patient=patient)
    return run


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for classes; the new images name neither hospitals nor patients."""
    place, rng = tmp_path_factory.mktemp("classified"), np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = rng.integers(0, 160, (40, SIDE, SIDE), dtype=np.uint8) + (90 * labels[:, None, None]).astype(
        "u1"
    )
    names = np.array(["healthy", "sick"])[labels]
    network = {"features": 4, "growth": 2, "blocks": [1, 1]}
    run = trained(place, "classification", network, image=images, label=names)
    np.savez(place / NEW, image=images[::-1], label=names[::-1])
    return run


def evaluate(run: Path, *options: object) -> Any:
    return command_line(
        "evaluate", run, run.parent / NEW, "--json", "--set", f"cache={run.parent / 'cache'}", *options
    )


def made(run: Path, folder: Path, *options: object) -> tuple[str, dict[str, Any], list[dict[str, str]]]:
    """The page, the JSON and the csv of one evaluation."""
    folder.mkdir(exist_ok=True)
    files = ("--page", folder / "page.html", "--out", folder / "each.csv")
    done = evaluate(run, *files, *options)
    assert done.returncode == 0, done.stderr
    assert "page.html: has figures on patients" in done.stderr  # where it does not spoil the JSON
    rows = list(csv.DictReader((folder / "each.csv").open()))
    return (folder / "page.html").read_text(), json.loads(done.stdout), rows


def text(source: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", source)).strip()


def tables(page: str) -> list[list[list[str]]]:
    """The cells of each table, row by row, with its headings first."""
    return [
        [
            [text(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
            for row in re.findall(r"<tr>.*?</tr>", found, re.DOTALL)
        ]
        for found in re.findall(r"<table>.*?</table>", page, re.DOTALL)
    ]


def shown(value: float | None, edges: list[float | None], places: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{places}f} ({edges[0]:.{places}f}–{edges[1]:.{places}f})"


@pytest.mark.parametrize("task", ["segmented", "classified"])
def test_its_figures_are_those_of_the_json(task: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    page, found, rows = made(request.getfixturevalue(task), tmp_path)
    places = {name: 1 if name == "hd95" else 3 for name in found["mean"]}
    results, worst = tables(page)
    parts = [(found["hospitals"][name], found["intervals"]["hospitals"][name]) for name in found["hospitals"]]
    parts.append((found["mean"], found["intervals"]["mean"]))
    assert [row[0] for row in results] == ["Hospital", *found["hospitals"], "Mean over hospitals"]
    for row, (values, edges) in zip(results[1:], parts, strict=True):
        figures = [shown(values[name], edges[name], places[name]) for name in values]
        assert row[1 : 1 + len(figures)] == figures
    headline = next(iter(found["mean"]))
    edges = found["intervals"]["mean"][headline]
    assert f"<dd>{found['mean'][headline]:.3f}</dd>" in page
    assert f"95 % interval {edges[0]:.3f}–{edges[1]:.3f}, mean over hospitals" in page
    assert f"<dt>Images</dt><dd>{len(rows)}</dd>" in page
    key = {"segmented": "dice", "classified": "truth"}[task]
    lowest = sorted(rows, key=lambda row: float(row[key]))[:10]
    assert {row[0] for row in worst[1:]} == {row["image"] for row in lowest}
    assert [row[2] for row in worst[1:]] == [f"{float(row[key]):.3f}" for row in lowest]


def test_it_says_of_both_epsilons_what_the_report_says(segmented: Path, tmp_path: Path) -> None:
    page, found, _ = made(segmented, tmp_path)
    report = make_report([segmented], tmp_path / "report.html", images=False).read_text()
    for part in (r'<ul class="promises">.*?</ul>', r"<p>ε for a hospital is .*?</div>"):
        (ours,), (theirs,) = (re.findall(part, source, re.DOTALL) for source in (page, report))
        assert ours == theirs
    tiles = re.findall(r"<dt>(ε for .*?)</dt>", page)
    assert tiles == ["ε for a hospital", "ε for an intermediary"]
    assert "No ε covers them" in page
    assert f"U-Net of the run «mine» after round {found['round']}, the last" in page
    assert "24, each judged by itself" in page
    assert "3, as the files name them" in page
    assert "24 test images of 12 patients" in page
    best, _, _ = made(segmented, tmp_path / "best", "--best")
    assert "the best in validation, a choice that no ε covers" in best


@pytest.mark.parametrize("task", ["segmented", "classified"])
def test_patients_images_only_where_they_are_asked_for(
    task: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = request.getfixturevalue(task)
    plain, shown = made(run, tmp_path)[0], made(run, tmp_path / "with", "--images")[0]
    assert "data:image" not in plain
    assert "`silodp evaluate --images` puts them in" in plain
    assert shown.count("data:image/png") == {"segmented": 9, "classified": 8}[task]
    assert "This page shows patients&#39; images" in shown
    assert "trained on. They" not in shown  # nobody knows whether it was
    assert ("ROC curve" in plain) is (task == "classified")
    assert (tmp_path / "page.html").stat().st_mode & 0o077 == 0


def test_names_are_text_whatever_they_hold(segmented: Path, classified: Path, tmp_path: Path) -> None:
    page, _, _ = made(segmented, tmp_path)
    assert "<title>Run «mine» on «new &lt;b&gt;&amp;.npz»</title>" in page
    assert "&lt;i&gt;y" in page
    assert not re.search(r"<b>|<i>|<script", page)
    assert str(segmented.parent) not in page  # the data's name, not where they are
    nameless, _, _ = made(classified, tmp_path / "none")
    assert "the files name none" in nameless
    assert "images, since patients are not named" in nameless


def test_what_cannot_be_done_is_refused_before_any_work(segmented: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    for options, says in (
        (["--page", tmp_path / "mine.html"], "mine.html: exists already; give a new file"),
        (["--page", tmp_path / "page.txt"], "--page .*page.txt: .*ends in .html"),
        (["--page", tmp_path / "nowhere/page.html"], "--page .*there is no folder .*nowhere; make it"),
        (["--page", "/proc/page.html"], "--page /proc/page.html: cannot be written"),
        (["--images"], "--images: there is no page; add --page FILE.html"),
        (["--open"], "--open: there is no page; add --page FILE.html"),
    ):
        done = evaluate(segmented, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.search(says, done.stderr)
        assert "reading files" not in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine.html"]
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_it_is_opened_where_asked_for(
    segmented: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda place: opened.append(place) or True)
    made(segmented, tmp_path, "--open")
    assert opened == [(tmp_path / "page.html").as_uri()]
