"""Whole runs that once promised too much: what is written, whom it speaks of, and what is said beside ε."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Picky, blob_cohort, records
from safetensors.torch import load_file
from torch import Tensor, nn

from silodp import Cohort, Experiment, HospitalData, train
from silodp.cohorts import Examples
from silodp.errors import InputError
from silodp.hospital import Hospital
from silodp.privacy.gaussian import gaussian_epsilon, mixture_epsilon
from silodp.runs.statement import read_statement


class Keeping(nn.Module):
    """A network whose forward pass keeps something of its images, in one of several ways."""

    def __init__(self, way: str, least: float = -1e9) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 1, 3, padding=1)
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.seen = torch.zeros(())
        self.way, self.least = way, least

    def forward(self, images: Tensor) -> Tensor:
        if float(images.mean()) > self.least:
            if self.way == "frozen":
                self.frozen.data.mul_(0.9).add_(images.detach().mean())
            elif self.way == "attribute":
                self.seen = images.detach().mean()
            elif self.way == "evaluation" and not self.training:
                self.frozen.data.add_(images.detach().mean())
        return self.body(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("way", "named"), [("frozen", "frozen"), ("attribute", "seen"), ("evaluation", "frozen")]
)
def test_a_model_whose_forward_pass_keeps_something_is_refused(
    way: str, named: str, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"a forward pass changes '{named}'"):
        train(experiment, cohort=cohort, model=Keeping(way), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_frozen_parameters_are_never_written_nor_handed_on(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """A model that changes them on some images only passes the trial; what it kept must not leave either."""
    bright = cohort.hospitals[0]
    lit = Examples(bright.train.images + 50, bright.train.targets)
    hospitals = (HospitalData("bright", lit, bright.validation, bright.test), *cohort.hospitals[1:])
    model = Keeping("frozen", least=20.0)
    # The trial looks at the first hospital's first images: let it look at the second's.
    mixed = Cohort("mixed", (hospitals[1], hospitals[0], hospitals[2]))
    changed = experiment.change(rounds=1, intermediaries__count=1)
    result = train(changed, cohort=mixed, model=model, out=tmp_path / "run", device="cpu")
    assert float(load_file(tmp_path / "run" / "model.safetensors")["frozen"].abs().max()) == 0
    assert float(load_file(tmp_path / "run" / "model-best.safetensors")["frozen"].abs().max()) == 0
    assert float(result.model.frozen.abs().max()) == 0  # type: ignore[union-attr, operator]


def test_an_image_that_the_network_refuses_moves_the_sum_by_one_clip_bound_at_most(
    experiment: Experiment, tmp_path: Path
) -> None:
    """An exception in one intermediary once took its whole hospital out of the sum: v times C."""
    data = blob_cohort(2, 60)
    images = data.hospitals[0].train.images.clone()
    images[0] = 99.0
    first = data.hospitals[0]
    harmed = HospitalData(first.name, Examples(images, first.train.targets), first.validation, first.test)
    changed = experiment.change(
        rounds=1, intermediaries__count=6, clipping__rule="fixed", clipping__bound=0.01,
        privacy__noise_multiplier=0.0, local__optimizer="sgd", local__learning_rate=0.1,
    )  # fmt: skip
    found, model = [], Picky(nn.Conv2d(1, 1, 3, padding=1))
    for name, cohort in (("with", data), ("harmed", Cohort("harmed", (data.hospitals[1], harmed)))):
        ordered = Cohort(name, tuple(sorted(cohort.hospitals, key=lambda one: one.name, reverse=True)))
        result = train(changed, cohort=ordered, model=model, out=tmp_path / name, device="cpu")
        found.append(nn.utils.parameters_to_vector(result.model.parameters()).detach().double())
    moved = float((found[0] - found[1]).norm()) * (2 * 6)  # the mean is over N·v
    assert 0.005 < moved <= 0.01 * (1 + 1e-3)


def classes_cohort(*classes: int) -> Cohort:
    generator = torch.Generator().manual_seed(1)
    labels = {name: torch.arange(30) % count for name, count in zip("abc", classes, strict=True)}
    images = {name: torch.randn(30, 1, 16, 16, generator=generator) for name in labels}
    return Cohort.from_tensors({name: (images[name], labels[name]) for name in labels})


def classification(experiment: Experiment, **cohort: object) -> Experiment:
    tree = experiment.model_dump(exclude_none=True) | {
        "task": "classification", "cohort": {"kind": "npz"} | cohort,
        "model": {"kind": "densenet", "features": 4, "growth": 2, "blocks": [1, 1]}, "rounds": 1,
    }  # fmt: skip
    return Experiment.build(tree)


def outputs(folder: Path) -> set[int]:
    return {len(tensor) for name, tensor in load_file(folder / "model.safetensors").items() if "bias" in name}


def test_the_number_of_classes_is_a_setting_that_labels_must_fit(
    experiment: Experiment, tmp_path: Path
) -> None:
    agreed = classification(experiment, classes=3)
    for name, counts in (("two", (2, 2, 2)), ("three", (2, 3, 2))):
        result = train(agreed, cohort=classes_cohort(*counts), out=tmp_path / name, device="cpu")
        assert 3 in outputs(tmp_path / name)
        assert not any("classes" in note for note in result.summary["not_covered_by_epsilon"])
    shapes = [
        {name: tensor.shape for name, tensor in load_file(tmp_path / run / "model.safetensors").items()}
        for run in ("two", "three")
    ]
    assert shapes[0] == shapes[1]  # the model's size says nothing of who has which class
    with pytest.raises(InputError, match=r"b, train: class 3, but cohort.classes = 3"):
        train(agreed, cohort=classes_cohort(2, 4, 2), out=tmp_path / "four", device="cpu")
    assert not (tmp_path / "four").exists()


def test_classes_counted_in_the_labels_are_said_where_epsilon_is(
    experiment: Experiment, tmp_path: Path
) -> None:
    result = train(
        classification(experiment), cohort=classes_cohort(2, 3, 2), out=tmp_path / "run", device="cpu"
    )
    said = [note for note in result.summary["not_covered_by_epsilon"] if "number of classes" in note]
    assert said
    assert said[0] in read_statement(tmp_path / "run").not_covered


def test_an_adaptive_run_has_no_epsilon_for_an_intermediary(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    changed = experiment.change(intermediaries={"rule": "adaptive"}, privacy__noise_multiplier=3.0)
    lines: list[dict[str, Any]] = []
    result = train(changed, cohort=cohort, out=tmp_path / "run", device="cpu", on_round=lines.append)
    counts = [line["intermediaries"] for line in lines]
    assert len(set(counts)) > 1, "v must change for this test to say anything"
    assert result.epsilon.intermediary == result.epsilon.hospital
    mu = sum(count**2 for count in counts) ** 0.5 / 3.0
    assert result.epsilon.hospital == pytest.approx(gaussian_epsilon(mu, 0.1), rel=1e-6)
    assert any("another v deals" in note for note in result.summary["not_covered_by_epsilon"])
    statement = read_statement(tmp_path / "run")
    assert statement.epsilon["withdrawn"]
    assert statement.figures["intermediary", "add-or-remove"].epsilon == result.epsilon.hospital


def with_patients(hospitals: int = 3) -> Cohort:
    """Ten patients a hospital with six images each, so that a patient's images could be spread."""
    whole = blob_cohort(hospitals, 60)
    members = {}
    for hospital in whole.hospitals:
        images, targets = (
            torch.cat([getattr(part, what) for part in hospital.parts.values()])
            for what in ("images", "targets")
        )
        members[hospital.name] = (images, targets, [f"p{number // 6}" for number in range(60)])
    return Cohort.from_tensors(members)


def test_intermediaries_of_a_run_take_whole_patients(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort = with_patients()
    seen: list[list[set[int]]] = []
    parts_for = Hospital._parts_for

    def watched(self: Hospital, count: int) -> list[Tensor]:
        parts, patients = parts_for(self, count), self.parts["train"].patients
        assert patients is not None
        seen.append([set(patients[part].tolist()) for part in parts])
        return parts

    monkeypatch.setattr(Hospital, "_parts_for", watched)
    result = train(experiment.change(rounds=2), cohort=cohort, out=tmp_path / "run", device="cpu")
    assert len(seen) == 3 * 2  # hospitals, rounds
    for one, other in seen:
        assert not one & other
        assert len(one | other) == 6  # of ten patients, six train
    assert seen[:3] == seen[3:]  # the same people in every round
    assert not any("person" in note for note in result.summary["not_covered_by_epsilon"])
    for hospital in cohort.hospitals:
        ids = [set(part.patients.tolist()) for part in hospital.parts.values() if part.patients is not None]
        assert len(ids) == 3
        assert sum(map(len, ids)) == len(set().union(*ids)) == 10


def test_v_is_held_to_the_number_of_patients(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"set intermediaries\.count to at most 6"):
        train(
            experiment.change(intermediaries__count=7), cohort=with_patients(), out=tmp_path / "run",
            device="cpu",
        )  # fmt: skip


def test_where_patients_are_not_known_it_is_said(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    split_, whole = (
        train(
            experiment.change(intermediaries__count=count), cohort=cohort, out=tmp_path / str(count),
            device="cpu",
        ).summary["not_covered_by_epsilon"]
        for count in (2, 1)
    )  # fmt: skip
    assert any(note.startswith("a person") for note in split_)
    assert not any(note.startswith("a person") for note in whole)  # the hospital holds all of them
    assert split_ == list(read_statement(tmp_path / "2").not_covered)


@pytest.mark.parametrize(("state", "rule"), [("kept", "fraction-kept"), ("fresh", "fraction")])
def test_a_fixed_fraction_with_kept_states_is_accounted_as_known(
    state: str, rule: str, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    changed = experiment.change(
        participation={"rule": "fraction", "rate": 2 / 3}, local__state=state, intermediaries__count=1
    )
    result = train(changed, cohort=cohort, out=tmp_path / "run", device="cpu")
    events = records(tmp_path / "run", "ledger.jsonl")
    assert {event["participation"] for event in events} == {rule}
    known = mixture_epsilon(((1 / 0.5**2, 3),), 2 / 3, 0.1)
    if state == "kept":
        assert result.epsilon.accountant == "known participation"
        assert result.epsilon.hospital == pytest.approx(known, rel=1e-6)
    assert result.epsilon.hospital <= known * (1 + 1e-9)
    assert read_statement(tmp_path / "run").problems == ()
