"""The page as a person meets it: opened from disk in Chromium, read, made narrow, printed."""

import base64
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import Browser
from conftest import blob_cohort, killed_run, records, succeed
from selenium.webdriver.common.by import By
from small_runs import CT, MRI

from silodp import Cohort, Experiment, train
from silodp.errors import InputError
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.report import make_report
from silodp.report.axis import number

ODD = ('<script>document.title="owned"</script>', '"&lt;<b>bold', "a" * 90)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small runs of every kind that a page must bear."""
    folder = tmp_path_factory.mktemp("runs")
    plain = {
        "name": "plain",
        "privacy": {"noise_multiplier": 0.0},
        "clipping": {"rule": "none"},
        "intermediaries": {"rule": "fixed", "count": 1},
    }
    experiments = {
        "mri": MRI | {"budget": {"epsilon": 300.0}},
        "plain": MRI | plain,
        "stopped": MRI | {"name": "stopped", "budget": {"epsilon": 8.0}},
        "ct": CT,
    }
    for name, tree in experiments.items():
        train(Experiment.build(tree), out=folder / name, device="cpu")
    unfinished = Experiment.build(MRI | {"name": "unfinished", "diagnostics": False})
    killed_run(unfinished, 2, out=folder / "unfinished")
    named = zip(ODD, blob_cohort(3).hospitals, strict=True)
    odd = Cohort("odd", tuple(replace(hospital, name=name) for name, hospital in named))
    network = {"features": 2, "levels": 1}
    sample = {"rounds": 1, "model": network, "privacy": {"level": "sample"}, "name": "odd"}
    train(Experiment.build(sample), cohort=odd, out=folder / "odd", device="cpu")
    return {name: folder / name for name in (*experiments, "unfinished", "odd")}


@pytest.fixture(scope="module")
def pages(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    chosen = {name: [run] for name, run in runs.items()} | {
        "several": [runs["plain"], runs["mri"], runs["ct"], runs["unfinished"]]
    }
    made = {name: make_report(paths, folder / f"{name}.html") for name, paths in chosen.items()}
    return made | {"evaluated": evaluated(runs["mri"], folder), "sheet": folder / "sheet.html"}


def evaluated(run: Path, folder: Path) -> Path:
    """The page of a run's model on new images, whose names are as odd as names can be, and their sheet."""
    pixels = np.random.default_rng(0).integers(0, 255, (30, 32, 32), dtype=np.uint8)
    new, page = folder / "<b>new & old.npz", folder / "evaluated.html"
    np.savez(new, image=pixels, mask=pixels[:, :1] > np.arange(32)[:, None], hospital=np.repeat(ODD, 10))
    options = ("--page", page, "--images", "--set", f"cache={folder / 'cache'}")
    succeed("evaluate", run, new, *options)
    succeed("data", "preview", new, "--out", folder / "sheet.html", *options[3:])
    return page


RUNS = ("mri", "plain", "stopped", "ct", "unfinished", "odd", "several")
KINDS = (*RUNS, "evaluated", "sheet")


@pytest.fixture
def copy(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A run that may be damaged."""
    return shutil.copytree(runs["mri"], tmp_path / "run")


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_it_opens_from_disk_without_a_request_or_a_warning_and_fits_a_phone(
    kind: str, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages[kind], width=375)
    assert browser.console() == []
    asked = browser.requests()
    assert [url[:60] for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in asked if url.startswith("file:")]) == 1  # the page itself: the log works
    assert browser.run("return [document.documentElement.lang, document.characterSet]") == ["en", "UTF-8"]
    assert browser.run("return [window.innerWidth, document.documentElement.scrollWidth]") == [375, 375]
    # Wide tables scroll in boxes of their own, which the keyboard reaches.
    assert browser.run(
        """return [...document.querySelectorAll('.scroll')].every(
        box => box.tabIndex === 0 && box.getAttribute('aria-label') && box.clientWidth <= 343)"""
    )


@pytest.mark.parametrize("kind", [*RUNS, "evaluated"])
def test_every_chart_is_drawn_within_its_frame_and_described(
    kind: str, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages[kind])
    charts = browser.run(
        """
        const box = node => (found => [found.x, found.y, found.width, found.height])(node.getBBox());
        return [...document.querySelectorAll('svg.chart')].map(svg => ({
            label: svg.getAttribute('role') === 'img' ? svg.getAttribute('aria-label') : '',
            drawn: [...svg.querySelectorAll('.line, .dot')].map(box),
            texts: [...svg.querySelectorAll('text')].map(box),
        }))"""
    )
    assert len(charts) >= (1 if kind == "evaluated" else 2)
    for chart in charts:
        assert len(chart["label"]) > 20
        assert any(width > 0 or height > 0 for _, _, width, height in chart["drawn"]), chart["label"]
        for x, y, width, height in chart["drawn"] + chart["texts"]:
            assert 0 <= x <= x + width <= 361
            assert 0 <= y <= y + height <= 221


@pytest.mark.parametrize("kind", ["mri", "several", "evaluated"])
def test_it_prints_on_a_few_sheets(kind: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[kind])
    pdf = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert (5 if kind == "several" else 1) < len(re.findall(rb"/Type\s*/Page\b", pdf)) < 40


def test_no_script_runs_and_nothing_is_fetched_even_if_someone_puts_it_in(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    html = pages["mri"].read_text()
    harm = '<script>document.title="owned"</script><img src="http://127.0.0.1:9/x.png">'
    (tmp_path / "page.html").write_text(html.replace("</footer>", f"</footer>{harm}"))
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.title") == "Run «mri»"
    assert any("Content Security Policy" in message for message in browser.console())


def test_names_are_text_whatever_they_hold(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["odd"])
    assert browser.run("return document.querySelectorAll('script, b').length") == 0
    assert browser.run("return document.title") == "Run «odd»"
    rows = browser.texts("tbody th")
    for name in ODD:
        assert rows.count(name) == 2, name  # who holds what, and results
    titles = browser.run(
        "return [...document.querySelectorAll('svg.chart .faint title')].map(title => title.textContent)"
    )
    assert any(title.startswith(ODD[0]) for title in titles)
    assert "given from Python" in browser.text("main")
    assert browser.texts("img") == []


def test_the_numbers_are_those_of_the_run(
    browser: Browser, pages: dict[str, Path], runs: dict[str, Path]
) -> None:
    """ε from the closed form: three Gaussian releases of z = 1, to which a hospital contributes twice."""
    browser.open(pages["mri"])
    result = summary(runs["mri"])
    part, hospital = (gaussian_epsilon(math.sqrt(3) * v, 0.1) for v in (1, 2))
    assert result["epsilon"]["hospital"] == pytest.approx(hospital, rel=1e-6)
    tiles = dict(zip(browser.texts(".tiles dt"), browser.texts(".tiles dd:not(.about)"), strict=True))
    assert list(tiles.items()) == [
        ("ε for a hospital", f"{hospital:,.1f}"),
        ("ε for an intermediary", f"{part:,.1f}"),
        ("Dice on test images", f"{result['test']['last']['mean']['dice']:.3f}"),
        ("Rounds", "3"),
    ]
    swap = result["epsilon"]["replace_one"]
    box = browser.text(".box")
    assert f"{swap['hospital']:,.1f} for one hospital and {swap['intermediary']:,.1f} for one" in box
    lead = browser.text(".lead")
    assert "3 simulated hospitals trained one U-Net" in lead
    assert lead.index(f"ε for a hospital is {hospital:,.1f}") < lead.index(f"split into, is {part:,.1f}")
    table = browser.driver.find_elements(By.CSS_SELECTOR, ".scroll table")[1]
    rows = [row.text.split() for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")]
    last, best = (result["test"][which]["hospitals"] for which in ("last", "best"))
    intervals, tried = (result["test"]["last"][key] for key in ("intervals", "tried"))

    def with_interval(hospital: str, name: str, places: int) -> list[str]:
        edges = intervals["hospitals"][hospital][name]
        shown = [f"{last[hospital][name]:.{places}f}"]
        if None not in edges:  # where more than one patient was tested
            shown.append("({}–{})".format(*(f"{edge:.{places}f}" for edge in edges)))
        return shown

    assert rows == [
        [
            name,
            *with_interval(name, "dice", 3),
            *with_interval(name, "iou", 3),
            *with_interval(name, "hd95", 1),
            f"{best[name]['dice']:.3f}",
            str(tried[name]["images"]),
            str(tried[name]["patients"]),
        ]
        for name in last
    ]
    foot = table.find_element(By.CSS_SELECTOR, "tfoot").text
    assert f"{result['test']['best']['mean']['dice']:.3f}" in foot
    assert "No ε covers that choice" in browser.text("main")
    for note in result["not_covered_by_epsilon"]:
        assert note[1:] in browser.text("main")
    assert "budget allows ε = 300 for one hospital" in browser.text("main")
    assert browser.text("section:last-of-type > pre") == f"silodp run {runs['mri']}/experiment.toml"
    hidden = browser.run("return document.querySelector('details pre').textContent")
    assert hidden.strip() == (runs["mri"] / "experiment.toml").read_text().strip()
    assert f"PyTorch {torch.__version__}" in browser.text("main")


def test_points_have_the_values_of_the_run(
    browser: Browser, pages: dict[str, Path], runs: dict[str, Path]
) -> None:
    """Where they lie on the drawing is tested in test_chart.py."""
    browser.open(pages["mri"])
    rounds = records(runs["mri"])
    for title, values in (
        ("Dice on validation", [line["validation"]["mean"]["dice"] for line in rounds]),
        ("Training loss", [line["train_loss"] for line in rounds]),
        ("λ", [line["lambda"] for line in rounds]),
        ("v:", [line["intermediaries"] for line in rounds]),
        ("C:", [line["clip_bound"] for line in rounds]),
        ("ε after", [line["epsilon"][unit] for unit in ("hospital", "intermediary") for line in rounds]),
    ):
        chart = browser.chart(title)
        assert [name.rsplit(": ")[-1] for name, _ in chart["dots"]] == [number(value) for value in values]
    assert chart["ends"] == [f"{rounds[-1]['epsilon'][unit]:,.1f}" for unit in ("hospital", "intermediary")]
    names = [name.split(",")[0] for name, _ in chart["dots"]]
    assert names == ["one hospital"] * 3 + ["one intermediary"] * 3
    assert "budget for one hospital: 300" in chart["label"]
    assert len(chart["levels"]) == 1
    assert "ower is more private" in chart["about"]


def test_pictures_are_there_with_a_legend(
    browser: Browser, pages: dict[str, Path], runs: dict[str, Path]
) -> None:
    browser.open(pages["mri"])
    widths = browser.run("return [...document.images].map(image => image.naturalWidth)")
    held = json.loads((runs["mri"] / "cohort.json").read_text())["hospitals"].values()
    assert widths == [192] * sum(min(3, parts["test"]["images"]) for parts in held)
    assert len(widths) >= 7
    assert browser.texts(".legend.key li") == ["true outline", "predicted outline"]
    alts = browser.run("return [...document.images].map(image => image.alt)")
    assert all("true and its predicted outline" in alt for alt in alts)
    assert "patients' images" not in browser.text("body")


def test_a_classification_has_a_roc_curve_and_images(
    browser: Browser, pages: dict[str, Path], runs: dict[str, Path]
) -> None:
    browser.open(pages["ct"])
    chart = browser.chart("ROC")
    assert "all test images together (AUC" in chart["label"]
    result = summary(runs["ct"])["test"]["last"]["hospitals"]
    titles = browser.run(
        "return [...document.querySelectorAll('svg.chart .faint title')].map(title => title.textContent)"
    )
    for name, found in result.items():
        assert f"{name}, AUC {found['auc']:.3f}" in titles  # the area of the drawn curve is the run's AUC
    assert browser.run("return document.images.length") == 8
    captions = browser.texts(".pictures figcaption")
    assert all(
        re.search(r"truth: class [01]\nmodel: class [01], \d+% \((right|wrong)\)", text) for text in captions
    )
    assert {text.split("\n")[0] for text in captions} == {"truth: class 0", "truth: class 1"}


@pytest.mark.parametrize(
    ("kind", "place", "texts"),
    [
        ("plain", ".lead", ["Nothing protects the hospitals in this run"]),
        ("plain", ".tiles", ["ε for a hospital\n∞", "ε for an intermediary\n∞"]),
        ("plain", "main", ["no noise, so λ has no curve", "not clipped", "so ε has no curve"]),
        ("stopped", ".note", ["The budget ended this run.", "{stopped}"]),
        ("stopped", ".tiles", ["of 3 the budget ended the run"]),
        ("unfinished", ".note", ["This run is unfinished.", "2 of 3 rounds"]),
        ("unfinished", ".lead", ["on validation images (1 is perfect, 0 is no overlap; mean over"]),
        ("unfinished", "main", ["no test results yet", "no finished model"]),
        ("unfinished", "main", [f"diagnostics = false), so {what} has no curve"
                                for what in ("λ", "the training loss")]),
    ],
)  # fmt: skip
def test_the_state_of_a_run_is_said_in_words(
    kind: str,
    place: str,
    texts: list[str],
    browser: Browser,
    pages: dict[str, Path],
    runs: dict[str, Path],
) -> None:
    browser.open(pages[kind])
    why = summary(runs["stopped"])["stopped"][1:]
    assert [text for text in texts if text.format(stopped=why) not in browser.text(place)] == []


def test_one_image_has_an_epsilon_where_hospitals_noise_their_steps(
    browser: Browser, pages: dict[str, Path], runs: dict[str, Path]
) -> None:
    browser.open(pages["odd"])
    epsilon = summary(runs["odd"])["epsilon"]
    tiles = dict(zip(browser.texts(".tiles dt"), browser.texts(".tiles dd:not(.about)"), strict=True))
    assert tiles["ε for an image"] == f"{epsilon['image']:,.1f}"
    assert list(tiles)[:3] == ["ε for a hospital", "ε for an intermediary", "ε for an image"]


def test_several_runs_side_by_side(browser: Browser, pages: dict[str, Path], runs: dict[str, Path]) -> None:
    browser.open(pages["several"])
    table = browser.driver.find_element(By.CSS_SELECTOR, ".scroll table")
    headings = [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "thead th")]
    assert headings[:5] == ["Run", "ε for a hospital", "ε for an intermediary", "Test Dice", "Test AUC"]
    rows = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")]
            for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")]  # fmt: skip
    assert [row[0] for row in rows] == ["A plain", "B mri", "C ct", "D unfinished"]
    mri = summary(runs["mri"])
    edges = mri["test"]["last"]["intervals"]["mean"]["dice"]
    interval = "" if None in edges else " ({:.3f}–{:.3f})".format(*edges)
    assert rows[1][1:5] == [
        f"{mri['epsilon']['hospital']:,.1f}", f"{mri['epsilon']['intermediary']:,.1f}",
        f"{mri['test']['last']['mean']['dice']:.3f}{interval}", "–",
    ]  # fmt: skip
    assert rows[0][1:3] == ["∞", "∞"]
    assert rows[3][-1] == "2 of 3, unfinished"
    assert sorted(browser.chart("Dice on validation")["ends"]) == ["A", "B", "D"]  # from the top down
    assert browser.chart("AUC on validation")["ends"] == ["C"]
    assert sorted(browser.chart("ε for one hospital")["ends"]) == ["B", "C", "D"]  # A is without privacy
    assert "not trained on the same data" in browser.text("main")
    differ = browser.driver.find_elements(By.CSS_SELECTOR, ".scroll table")[1].text
    assert "privacy.noise_multiplier 0 1 " in differ
    links = browser.run(
        "return [...document.querySelectorAll('a')].map(a => !!document.querySelector(a.hash))"
    )
    assert links == [True] * 8  # to each run, and in each to what ε does not cover
    headings = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(headings))


@pytest.mark.parametrize(
    ("name", "harm", "says"),
    [
        ("ledger.jsonl", lambda text: "".join(text.splitlines(keepends=True)[:-1]), "missing at the end"),
        (
            "ledger.jsonl",
            lambda text: text.replace('"noise_multiplier": 1', '"noise_multiplier": 9'),
            "changed",
        ),
        ("ledger.jsonl", None, "the ledger is missing"),
        (
            "summary.json",
            lambda text: text.replace('"hospital": ', '"hospital": 1', 1),
            "summary.json says ε 1",
        ),
    ],
)
def test_a_ledger_that_is_not_in_order_comes_first(
    name: str, harm: Callable[[str], str] | None, says: str, browser: Browser, copy: Path
) -> None:
    text = (copy / name).read_text()
    (copy / name).unlink()
    if harm is not None:
        assert harm(text) != text
        (copy / name).write_text(harm(text))
    browser.open(make_report([copy], copy / "report.html", images=False))
    alert = browser.text("[role=alert]")
    assert "not in order" in alert
    assert says in alert
    top = "return document.querySelector('{}').getBoundingClientRect().top"
    assert browser.run(top.format("[role=alert]")) < browser.run(top.format(".lead"))
    assert "every round there, none changed" not in browser.text("main")


def test_what_is_not_a_number_leaves_a_gap_and_the_version_is_named(browser: Browser, copy: Path) -> None:
    lines = records(copy)
    lines[1]["validation"]["mean"]["dice"] = None
    lines[1]["lambda"], lines[2]["lambda"] = float("inf"), float("nan")
    for line in lines:
        line["train_loss"] = None
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = summary(copy)
    told["test"]["last"]["mean"]["dice"] = None
    first = next(iter(told["test"]["last"]["hospitals"]))
    told["test"]["last"]["hospitals"][first]["dice"] = None
    told["test"]["best"]["hospitals"][first] = {"dice": 0.4321, "iou": 0.1, "hd95": 1.0}
    told["silodp"] = "0.5.0 (commit 1a2b3c4)"
    (copy / "summary.json").write_text(json.dumps(told))
    browser.open(make_report([copy], copy / "report.html", images=False))
    assert browser.console() == []
    dots = [name for name, _ in browser.chart("Dice on validation")["dots"]]
    assert [name.split(":")[0][-7:] for name in dots] == ["round 1", "round 3"]
    assert len(browser.chart("λ")["dots"]) == 1
    assert "Dice on test images is not defined" in browser.text(".lead")
    row = browser.driver.find_elements(By.CSS_SELECTOR, ".scroll table")[1].find_elements(By.TAG_NAME, "tr")[
        1
    ]
    assert row.text.split()[:2] == [first, "–"]
    assert row.text.split()[-3] == "0.432"
    assert "no value of the training loss" in browser.text("main")
    assert "was trained with silodp 0.5.0 (commit 1a2b3c4)" in browser.text("section:last-of-type")
    source = (copy / "report.html").read_text()
    assert not re.search(r"\bnan\b|NaN|\binf\b|None", source)


def test_real_patients_images_are_announced_or_left_out(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    labels = np.tile([0, 1], 30).astype(np.uint8)
    pixels = np.random.default_rng(0).integers(0, 100, (60, 32, 32), np.uint8) + 100 * labels[:, None, None]
    known = {
        "label": labels,
        "hospital": np.repeat(["Aarhus", "Bern"], 30),
        "patient": np.arange(60) + 12345600,
    }
    np.savez(tmp_path / "files.npz", image=pixels, **known)
    tree = CT | {"cohort": {"kind": "npz", "path": str(tmp_path / "files.npz")}, "name": "real", "rounds": 1}
    run = train(Experiment.build(tree), out=tmp_path / "run", device="cpu").folder
    browser.open(make_report([run], tmp_path / "default.html"))
    assert browser.run("return document.images.length") == 0
    assert "patients' images" not in browser.text("body")
    assert browser.text("main").count("`silodp report --images` puts them in") == 1
    assert browser.chart("ROC")  # a curve shows nobody
    assert browser.texts("tbody th") == ["Aarhus", "Bern"] * 2  # what they hold, and results
    page = make_report([run], tmp_path / "with.html", images=True)
    browser.open(page)
    assert "This page shows patients' images" in browser.text("header")
    assert browser.run("return document.images.length") == 8
    assert "2 hospitals trained one DenseNet" in browser.text(".lead")
    assert "simulated" not in browser.text(".lead")
    assert not re.search(r"123456\d\d|files\.npz#", page.read_text())  # neither patients nor files
    browser.open(make_report([run], tmp_path / "without.html", images=False))
    assert browser.run("return document.images.length") == 0
    assert "patients' images" not in browser.text("body")
    assert "--without-images" in browser.text("main")
    assert browser.chart("ROC")
    pixels[0] += 1
    np.savez(tmp_path / "files.npz", image=pixels, **known)
    browser.open(make_report([run], tmp_path / "other.html"))
    assert "no longer those of cohort.json" in browser.text("main")
    (tmp_path / "files.npz").unlink()
    browser.open(make_report([run], tmp_path / "gone.html"))
    assert "Nothing lies at cohort.path any more" in browser.text("main")
    assert browser.run("return document.images.length") == 0


def test_only_a_page_of_ours_is_written_over(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report.html"
    out.parent.mkdir()
    make_report([runs["unfinished"]], out)
    make_report([runs["unfinished"]], out)
    out.write_text("<p>a thesis</p>")
    with pytest.raises(InputError, match="no report of silodp has this name"):
        make_report([runs["unfinished"]], out)
    assert out.read_text() == "<p>a thesis</p>"
    with pytest.raises(InputError, match=r"report\.pdf: a report is a page"):
        make_report([runs["unfinished"]], tmp_path / "report.pdf")
    with pytest.raises(InputError, match="no run is there"):
        make_report([tmp_path / "deep"], tmp_path / "report.html")
    with pytest.raises(InputError, match="give the folder of a run"):
        make_report([], tmp_path / "report.html")


def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """/proc and /sys take no files, whoever asks."""
    (tmp_path / "file").write_text("")
    for out, says in (
        (tmp_path / "nowhere" / "x.html", "there is no folder .*nowhere; make it"),
        (tmp_path / "file" / "x.html", "there is no folder"),
        (Path("/sys/x.html"), r"cannot be written \(.+\); choose another place"),
        (Path("/proc/x.html"), r"cannot be written \(.+\); choose another place"),
        (tmp_path / ("x" * 300 + ".html"), "cannot be written"),
    ):
        worked: list[str] = []
        with pytest.raises(InputError, match=says):
            make_report([runs["ct"]], out, on_progress=lambda stage, *_, worked=worked: worked.append(stage))
        assert worked == []
    worked = []
    make_report([runs["ct"]], tmp_path / "x.html", on_progress=lambda stage, *_: worked.append(stage))
    assert worked  # the work is told of
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "x.html"]


def test_a_run_without_privacy_is_not_to_be_passed_on(pages: dict[str, Path]) -> None:
    assert "Pass on the model, not the page." in pages["mri"].read_text()
    assert "Do not pass it on." in pages["plain"].read_text()
    assert "Pass on the model" not in pages["plain"].read_text()
