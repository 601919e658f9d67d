"""Only what is named trains: the rest stays to the bit, and neither costs noise nor travels."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from silodp import Cohort, Experiment, InputError, build, train
from silodp.local.trainable import freeze_all_but
from silodp.messages import RoundPlan
from silodp.models.unet import UNet


def trainable(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def unet(affine: bool = True) -> UNet:
    return UNet(1, 1, 2, "group", 1, affine)


NORM = {f"{part}.{layer}.{what}" for part in ("down.0", "down.1", "merge.0")
        for layer in (1, 4) for what in ("weight", "bias")}  # fmt: skip
HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("head", HEAD),
        ("norm", NORM),
        ("norm+head", NORM | HEAD),
        ("up.*+head", {"up.0.weight", "up.0.bias"} | HEAD),
        ("*.bias", {name for name in NORM | HEAD if name.endswith("bias")} | {"up.0.bias"}),
    ],
)
def test_words_and_patterns_name_parameters(words: str, expected: set[str]) -> None:
    assert trainable(freeze_all_but(unet(), words)) == expected


def test_all_leaves_what_is_frozen_frozen() -> None:
    model, every = unet(), {name for name, _ in unet().named_parameters()}
    model.head.bias.requires_grad_(False)
    assert trainable(freeze_all_but(model, "all")) == every - {"head.bias"}
    assert trainable(freeze_all_but(model, "head")) == {"head.weight"}


@pytest.mark.parametrize(
    ("affine", "words", "message"),
    [
        (False, "norm+head", "no norm layer has a scale and a shift; set model.affine=true"),
        (True, "tail", "no parameter is called 'tail'; choose all, norm, head or patterns of names such as"),
        (True, "head+", "no parameter is called ''"),
    ],
)
def test_a_word_that_names_nothing_is_refused(affine: bool, words: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        freeze_all_but(unet(affine), words)
    assert message in str(caught.value)


@pytest.mark.parametrize(("words", "size"), [("head", 3), ("norm+head", 3 + 2 * (4 + 8 + 4))])
def test_only_what_trains_is_clipped_noised_and_changed(
    words: str, size: int, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """Of a U-Net of width 2 with one level the head is 2 + 1 numbers; norm layers have 2, 4, 2 channels, each
    twice. Noise of z·C on any other number would be seen."""
    few = experiment.change(model__trainable=words, model__affine=True, rounds=2)
    parts = build(few, cohort=cohort, device="cpu")
    assert len(parts.model) == size
    start = parts.model.named_tensors(parts.model.values)
    result = train(few, cohort=cohort, out=tmp_path / "run", device="cpu")
    assert result.summary["parameters"] == size
    end = load_file(tmp_path / "run/model.safetensors")
    assert end.keys() == start.keys()
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert moved == trainable(parts.model.module)
    assert len(moved) == {"head": 2, "norm+head": 14}[words]


def test_an_answer_is_as_long_as_what_trains(experiment: Experiment, cohort: Cohort) -> None:
    """Three numbers of the head and the bit."""
    parts = build(experiment.change(model__trainable="head"), cohort=cohort, device="cpu")
    plan = RoundPlan(1, parts.model.values.clone(), 2, 0.5)
    answers = list(parts.engine.train(plan, [hospital.name for hospital in cohort.hospitals]))
    assert [tuple(answer.numbers.shape) for answer in answers] == [(4,)] * 3


def test_an_own_model_is_frozen_in_the_copy_alone(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    chosen = experiment.change(model={"trainable": "head"}, rounds=1)
    result = train(chosen, cohort=cohort, model=model, out=tmp_path / "run", device="cpu")
    assert result.summary["parameters"] == 5
    assert trainable(model) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert torch.equal(result.model.get_parameter("0.weight"), model.get_parameter("0.weight"))


def test_other_frozen_values_are_another_model(experiment: Experiment, cohort: Cohort) -> None:
    """A checkpoint or a hospital with another start must not be taken for this one's."""
    first, second = (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 1)) for _ in range(2))
    chosen = experiment.change(model={"trainable": "head"})
    identities = [
        build(chosen, cohort=cohort, model=model, device="cpu").model.identity
        for model in (first, first, second)
    ]
    assert identities[0] == identities[1] != identities[2]
