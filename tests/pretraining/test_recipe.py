"""Making a start: it learns, the same for the same seed, and says what it was made from."""

from pathlib import Path

import pytest
import torch
from conftest import command_line

from silodp.models import ModelSettings
from silodp.models.start import read_start
from silodp.pretraining.recipe import Recipe, pretrain

UNET = ModelSettings.of(kind="unet", features=4, levels=2, affine=True)


def small(kind: str, model: ModelSettings, steps: int, seed: int = 0) -> Recipe:
    return Recipe(kind, model, image_size=32, images=160, steps=steps, batch_size=16, seed=seed)


def test_training_teaches_to_see_through_disguises() -> None:
    told: list[str] = []
    trained = pretrain(small("shapes", UNET, 160), torch.device("cpu"), lambda what, *far: told.append(what))
    hardly = pretrain(small("shapes", UNET, 8), torch.device("cpu"), lambda *far: None)
    assert trained.held_out["dice"] > hardly.held_out["dice"] + 0.1
    assert set(told) == {"drawing", "training"}


def test_a_class_is_taught_with_the_place_of_its_reason() -> None:
    """What points at the place is thrown away: the network has its own parameters alone."""
    model = ModelSettings.of(kind="resnet", features=4, blocks=(1, 1), affine=True)
    trained = pretrain(small("lesions", model, 10), torch.device("cpu"), lambda *far: None)
    assert set(dict(trained.network.named_parameters())) == set(dict(model.make(1, 2).named_parameters()))
    assert 0 <= trained.held_out["auc"] <= 1


def test_same_seed_same_start() -> None:
    first, again, other = (
        pretrain(small("shapes", UNET, 9, seed), torch.device("cpu"), lambda *far: None).network
        for seed in (0, 0, 1)
    )
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert any(not torch.equal(value, other.state_dict()[name]) for name, value in first.state_dict().items())


def test_the_command_writes_a_start_and_its_card(tmp_path: Path) -> None:
    out = tmp_path / "start.safetensors"
    options = ["--images", 16, "--steps", 8, "--batch-size", 8, "--image-size", 32, "--set", "features=2"]
    done = command_line("pretrain", "shapes", "--out", out, *options, "--set", "levels=2")
    assert done.returncode == 0, done.stderr
    assert "drawing: 2/2" in done.stderr
    assert "training: 8/8" in done.stderr
    about = read_start(str(out)).about
    assert about["model"]["features"] == 2
    assert (about["origin"], about["kind"], about["seed"]) == ("generated", "shapes", 0)
    assert "No image of a patient was seen" in (tmp_path / "start.md").read_text()
    assert "start.safetensors: on held-out generated images, dice 0." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pelvic", "--out", "a.safetensors"), "did you mean pelvis"),
        (("shapes", "--out", "a.pt"), "--out a.pt: give a name that ends in .safetensors"),
        (("shapes", "--out", "a.safetensors", "--steps", "1"), "--steps 1: give at least 8"),
        (("shapes", "--out", "a.safetensors", "--set", "kind=densenet"), "set task=classification"),
    ],
)
def test_bad_options_are_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = command_line("pretrain", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
