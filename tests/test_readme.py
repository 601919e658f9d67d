"""What the README shows is run here."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import silodp
from silodp.clipping import ClippingRule
from silodp.cohorts.kinds import StoredCohort
from silodp.experiment import PRESETS, RULES, Experiment, preset_names

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_are_ten_lines_at_most(code: str) -> None:
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize(("number", "written"), [(2, 'optimizer = "custom"'), (3, 'rule = "shrinking"')])
def test_an_own_optimizer_and_an_own_rule_run(
    number: int, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, on a smaller network: starting another takes longer than the example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ClippingRule, "known", dict(ClippingRule.known))
    assert '["rounds=2"]' in EXAMPLES[number]
    small = '["rounds=2", "cohort.slices=40", "cohort.image_size=32", "model.features=2", "model.levels=1"]'
    exec(EXAMPLES[number].replace('["rounds=2"]', small), {"__name__": "readme"})
    assert written in (tmp_path / "runs/demo-1/experiment.toml").read_text()


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
    exec(EXAMPLES[0], {"silodp": silodp, "images": np.zeros((5, 32, 32), np.uint8)})
    assert "('1',) torch.Size([5, 1, 32, 32])" in capsys.readouterr().out


def test_the_python_example_runs(tmp_path: Path) -> None:
    code = EXAMPLES[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/mine-1/summary.json").exists()


def test_the_presets_it_names_are_the_presets() -> None:
    listed = re.search(r"silodp presets +# (.*)", README)
    assert listed is not None
    assert listed[1].split(", ") == preset_names()


def test_the_choices_it_names_are_the_choices() -> None:
    for section, field in re.findall(r"^\| `(\w+)\.(\w+)` \|", README, flags=re.MULTILINE):
        (row,) = re.findall(rf"^\| `{section}\.{field}` \| (.*) \|$", README, flags=re.MULTILINE)
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
