"""What the README, docs/start.md and docs/extend.md show is run here."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import silodp
from silodp.cohorts.kinds import StoredCohort
from silodp.experiment import PRESETS, RULES, Experiment, preset_names
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study

ROOT = Path(__file__).parents[1]
README, START, EXTEND = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/start.md", "docs/extend.md")
)


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


def example(page: str, words: str) -> str:
    """The one example of a page that has these words in it."""
    (found,) = (code for code in examples(page) if words in code)
    return found


@pytest.mark.parametrize(
    ("code", "most"),
    [(code, most) for page, most in ((README, 10), (START, 10), (EXTEND, 15)) for code in examples(page)],
)
def test_examples_are_short(code: str, most: int) -> None:
    assert len([line for line in code.splitlines() if line.strip()]) <= most


def test_the_readme_is_short() -> None:
    words = re.sub(r"```.*?```", "", README, flags=re.DOTALL).split()
    assert len(words) <= 700  # with the names and addresses of its links


SMALL = '["rounds=2", "cohort.slices=40", "cohort.image_size=32", "model.features=2", "model.levels=1"'
RUNS = {
    "silodp.ServerOptimizer(": 'optimizer = "custom"',
    "(silodp.ClippingRule)": 'rule = "shrinking"',
    "(silodp.IntermediaryRule)": 'rule = "capped"',
    "(LocalSettings)": 'optimizer = "signs"',
    "(InProcess)": 'name = "demo"',
}


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that an example defines are forgotten after it."""
    for base in RULES.values():
        monkeypatch.setattr(base, "known", dict(base.known))


def test_every_example_of_an_extension_is_run_below() -> None:
    assert [
        [words in code for words in (*RUNS, "(FileCohort)", "study.Study(")].count(True)
        for code in examples(EXTEND)
    ] == [1] * 7


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize(("words", "written"), RUNS.items())
def test_an_own_object_runs(
    words: str,
    written: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, on a smaller network: starting another takes longer than the example."""
    monkeypatch.chdir(tmp_path)
    code = example(EXTEND, words)
    assert '["rounds=2"' in code
    exec(code.replace('["rounds=2"', SMALL), {"__name__": "readme"})
    assert written in (tmp_path / "runs/demo-1/experiment.toml").read_text()
    assert (capsys.readouterr().out.count("bytes") == 12) == (words == "(InProcess)")  # six hospitals, twice


def test_an_own_study_runs(tmp_path: Path) -> None:
    found: dict[str, Any] = {"__name__": "readme"}
    exec(example(EXTEND, "study.Study("), found)
    folder = run_study(found["EPOCHS"], make_plan("prostate", "smoke"), tmp_path, jobs=1, device="cpu")
    text = (folder / "table.md").read_text()
    assert "| Two epochs have a higher Dice than one |" in text
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2


@pytest.mark.usefixtures("own_rules")
def test_an_own_file_format_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    head = np.array([[n // 24, n // 2, n % 2] for n in range(48)], np.uint8)
    np.hstack([head, rng.integers(0, 255, (48, 256), np.uint8)]).tofile(tmp_path / "data.bytes")
    exec(example(EXTEND, "(FileCohort)"), {"__name__": "readme"})
    shown = re.search(r"Experiment\.build\(\{\}, \[(.*?)\]\)", EXTEND)
    assert shown is not None
    changes = re.findall(r'"(.*?)"', shown[1].replace("data.bytes", str(tmp_path / "data.bytes")))
    small = ["rounds=1", "model.features=2", "model.norm=instance", "model.blocks=[1,1]"]
    result = silodp.train(Experiment.build({}, [*changes, *small]), out=tmp_path / "run", device="cpu")
    assert 'kind = "bytes"' in (result.folder / "experiment.toml").read_text()


def test_a_model_is_loaded_as_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {
        "rounds": 1,
        "cohort.slices": 40,
        "cohort.image_size": 32,
        "model.features": 2,
        "model.levels": 1,
    }
    silodp.train(Experiment.load("demo", small), out=tmp_path / "runs/mine", device="cpu")
    exec(example(START, "silodp.load("), {"silodp": silodp, "images": np.zeros((5, 32, 32), np.uint8)})
    assert "('1',) torch.Size([5, 1, 32, 32])" in capsys.readouterr().out


def test_the_python_example_runs(tmp_path: Path) -> None:
    (code,) = examples(README)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/mine-1/summary.json").exists()


def test_the_presets_it_names_are_the_presets() -> None:
    listed = re.search(r"silodp presets +# (.*)", START)
    assert listed is not None
    assert listed[1].split(", ") == preset_names()


def test_the_choices_it_names_are_the_choices() -> None:
    found = re.findall(r"^\| `(\w+)\.(\w+)` \|", START, flags=re.MULTILINE)
    assert len(found) == 11
    for section, field in found:
        (row,) = re.findall(rf"^\| `{section}\.{field}` \| (.*) \|$", START, flags=re.MULTILINE)
        if section in RULES and field == RULES[section].key:
            known = RULES[section].known.items()  # tests define some, too
            choices = {name for name, rule in known if rule.__module__.startswith("silodp.")}
        else:
            kind = StoredCohort if section == "cohort" else Experiment.model_fields[section].annotation
            choices = _words(kind.model_fields[field].annotation)
        assert set(re.findall(r"`([\w-]+)`", row)) == choices - {"custom", "deployed"}  # nobody chooses these


def _words(annotation: Any) -> set[str]:
    """The choices of a field, whether or not it may also be left open."""
    found = get_args(annotation)
    return set().union(*map(_words, found)) if found else {annotation} - {type(None)}


def test_every_preset_says_what_it_is() -> None:
    for name in preset_names():
        preset = Experiment.load(name)
        assert preset.name == name
        assert preset.description
        assert (PRESETS / f"{name}.toml").read_text().startswith(f'name = "{name}"')
