"""Settings: from TOML and back, defaults that follow from others, and changes."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silodp.errors import InputError
from silodp.experiment import Experiment, ResolvedExperiment, delta_by_rule, preset_names


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_resolves_and_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    preset = Experiment.load(name)
    assert preset.name == name
    complete = preset.resolve(preset.cohort.hospitals or 6, 1)
    path = tmp_path / "experiment.toml"
    path.write_text(complete.to_toml(), encoding="utf-8")
    assert ResolvedExperiment.load(path) == complete
    assert complete.resolve(complete.cohort.hospitals or 6, 1) == complete


@settings(max_examples=50, deadline=None)
@given(
    description=st.text(max_size=40),
    z=st.floats(0, 1e6),
    delta=st.floats(1e-300, 0.999),
    blocks=st.lists(st.integers(1, 99), max_size=5),
    seed=st.integers(0, 2**62),
)
def test_toml_keeps_every_digit(
    description: str, z: float, delta: float, blocks: list[int], seed: int
) -> None:
    experiment = Experiment.build(
        {
            "description": description,
            "seed": seed,
            "task": "classification",
            "model": {"blocks": blocks},
            "privacy": {"noise_multiplier": z, "delta": delta},
        }
    ).resolve(6, 1)
    again = ResolvedExperiment.build(tomllib.loads(experiment.to_toml()))
    assert again == experiment
    assert (again.privacy.noise_multiplier, again.privacy.delta) == (z, delta)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 10**6))
def test_delta_is_the_largest_power_of_ten_below_one_over_n(hospitals: int) -> None:
    inverse = round(1 / delta_by_rule(hospitals))
    assert inverse in [10**k for k in range(1, 8)]
    assert inverse >= hospitals > inverse // 10


@pytest.mark.parametrize(
    ("optimizer", "z", "rate"),
    [
        ("fedavg", 0.5, 1.0),
        ("fednova", 0.5, 1.0),
        ("fedadam", 0.5, 0.03),
        ("dp2-rmsprop", 0.5, 1e-4),
        ("dp2-rmsprop", 0.0, 1e-3),
    ],
)
def test_resolving_fills_in_the_papers_figures(optimizer: str, z: float, rate: float) -> None:
    tree = {"server": {"optimizer": optimizer}, "privacy": {"noise_multiplier": z}}
    complete = Experiment.build(tree).resolve(20, 1)
    assert complete.server.learning_rate == rate
    assert complete.privacy.delta == pytest.approx(0.01)
    assert complete.cohort.hospitals == 20


def test_resolving_leaves_what_was_given() -> None:
    tree = {"server": {"learning_rate": 0.7}, "privacy": {"delta": 1e-5}}
    complete = Experiment.build(tree).resolve(6, 1)
    assert (complete.server.learning_rate, complete.privacy.delta) == (0.7, 1e-5)


def test_changes_are_parsed_by_what_they_look_like() -> None:
    changes = [
        "rounds=4", " rounds = 7 ", "privacy.noise_multiplier=3e-1", "local.amsgrad=false",
        "clipping.rule=fixed", 'name="quoted"', "description=a=b, and more", "task=classification",
        "model.blocks=[2, 3]",
    ]  # fmt: skip
    changed = Experiment.build({"rounds": 3}, changes)
    assert changed.rounds == 7  # the last change wins
    assert changed.privacy.noise_multiplier == 0.3
    assert changed.local.amsgrad is False
    assert changed.clipping.rule == "fixed"
    assert (changed.name, changed.description) == ("quoted", "a=b, and more")
    assert changed.model.blocks == (2, 3)


def test_building_leaves_the_given_tree_alone() -> None:
    tree: dict[str, Any] = {"privacy": {"noise_multiplier": 0.5}}
    Experiment.build(tree, ["privacy.noise_multiplier=0.9", "local.epochs=2"])
    assert tree == {"privacy": {"noise_multiplier": 0.5}}


def test_change_changes_one_thing() -> None:
    first = Experiment.build({"rounds": 9})
    second = first.change(rounds=5, privacy__noise_multiplier=0.3)
    assert (second.rounds, second.privacy.noise_multiplier) == (5, 0.3)
    assert (first.rounds, first.privacy.noise_multiplier) == (9, 0.5)
    assert second.change(rounds=9, privacy__noise_multiplier=0.5) == first


def test_change_is_checked() -> None:
    with pytest.raises(InputError, match=r"rounds = 0"):
        Experiment().change(rounds=0)
    with pytest.raises(InputError, match=r"privacy\.epsilon: no such setting"):
        Experiment().change(privacy__epsilon=1)


def test_what_is_neither_preset_nor_file_is_refused(tmp_path: Path) -> None:
    for source in ("no-such-thing", tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(
            InputError, match=r"neither a preset \(.*prostate-small.*\) nor a TOML file"
        ) as caught:
            Experiment.load(source)
        assert str(source) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"rounds = ", b"[privacy\n", b'name = "a"\nname = "b"\n', b"\xff\xfe", b'name = "\\ud800"',
        b"rounds = 1\x00", b"rounds = " + b"[" * 20_000, b"rounds = " + b"9" * 10_000,
        b"cohort = " + b"{a = " * 5000,
    ],
    ids=lambda content: str(content[:20]),
)  # fmt: skip
def test_toml_that_cannot_be_read_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.toml: not valid TOML") as error:
        Experiment.load(path)
    assert len(str(error.value).splitlines()) == 1


def test_a_classifier_has_other_defaults() -> None:
    experiment = Experiment(task="classification")
    assert (experiment.cohort.kind, experiment.model.kind) == ("synthetic-ct", "densenet")
    assert Experiment().cohort.kind == "synthetic-mri"


def test_dp_sgd_at_the_hospitals_has_defaults_that_fit_it() -> None:
    made = Experiment(privacy={"level": "sample"})
    assert (made.model.norm, made.clipping.rule) == ("group", "none")
    assert (made.intermediaries.rule, made.intermediaries.count) == ("fixed", 1)
    assert made.resolve(6, 1, images=1000).privacy.image_delta == pytest.approx(1e-3)
    classifier = Experiment(task="classification", privacy={"level": "sample"})
    assert (classifier.model.kind, classifier.model.norm) == ("densenet", "group")


def test_a_budget_takes_the_runs_delta_and_goes_through_toml() -> None:
    made = Experiment(budget={"epsilon": 10}).resolve(6, 1)
    assert made.budget is not None
    assert (made.budget.delta, made.budget.unit, made.budget.neighbours) == (0.1, "hospital", "add-or-remove")
    assert ResolvedExperiment.build(tomllib.loads(made.to_toml())) == made


@pytest.mark.parametrize(
    ("members", "delta"), [(1, 0.1), (6, 0.1), (10, 0.1), (11, 0.01), (20, 0.01), (None, 0.01)]
)
def test_delta_is_the_papers_for_the_hospitals_that_train(members: int | None, delta: float) -> None:
    """By default all of them do."""
    chosen = {"members": members} if members else {}
    complete = Experiment.build({"participation": chosen}).resolve(20, 1)
    assert complete.privacy.delta == pytest.approx(delta, rel=1e-12)
    assert (complete.members, complete.cohort.hospitals) == (members or 20, 20)
    if members and members > 1:
        few = members - 1
        with pytest.raises(
            InputError, match=rf"members = {members}: the cohort has {few} hospitals; set .* {few}$"
        ):
            Experiment.build({"participation": chosen}).resolve(few, 1)
    assert ResolvedExperiment.build(tomllib.loads(complete.to_toml())) == complete


@pytest.mark.parametrize("value", ["[" * 20_000, "9" * 10_000, "{a = " * 5000, "[" + "9, " * 5000 + "]"])
def test_a_change_that_python_cannot_read_is_one_short_line(value: str) -> None:
    with pytest.raises(InputError, match=r"^rounds = .*…") as error:
        Experiment.load("demo", [f"rounds={value}"])
    assert len(str(error.value)) < 500
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "setting", ["cohort.hospitals", "threads", "privacy.delta", "server.learning_rate", "budget.delta"]
)
def test_a_resolved_experiment_leaves_nothing_open(setting: str) -> None:
    """It is another type: what a federation needs is there, and a run's file that lost it is refused."""
    complete = Experiment(budget={"epsilon": 10}).resolve(6, 1)
    assert (complete.delta, complete.hospitals, complete.members) == (0.1, 6, 6)
    assert isinstance(complete.change(rounds=3), ResolvedExperiment)
    tree = complete.model_dump(exclude_none=True)
    section, _, name = setting.rpartition(".")
    del (tree[section] if section else tree)[name]
    assert not isinstance(Experiment.build(tree), ResolvedExperiment)
    with pytest.raises(InputError, match=rf"{setting}: is missing from the experiment of a run; restore it"):
        ResolvedExperiment.build(tree)


@pytest.mark.parametrize("rounds", [1, 20, 77])
@pytest.mark.parametrize(("epsilon", "mu"), [(1.0, 0.92), (8.0, 3.11)])
def test_the_budget_sets_the_noise(epsilon: float, mu: float, rounds: int) -> None:
    """μ = √T/z as published for δ = 0.1; z/v is a hospital's, so v intermediaries need v times the noise."""
    tree = {"rounds": rounds, "budget": {"epsilon": epsilon, "sets_noise": True}}
    for v in (1, 4):
        experiment = Experiment.build(tree | {"intermediaries": {"rule": "fixed", "count": v}})
        resolved = experiment.resolve(6, 1)
        assert math.sqrt(rounds) * v / resolved.privacy.noise_multiplier == pytest.approx(mu, abs=0.005)
        assert resolved.budget is not None
        assert not resolved.budget.sets_noise
        assert resolved.resolve(6, 1).privacy.noise_multiplier == resolved.privacy.noise_multiplier
