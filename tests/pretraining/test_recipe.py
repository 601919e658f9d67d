"""Pretraining of a start: it learns, is reproducible by seed, and describes its origin."""

from pathlib import Path

import pytest
import torch
from conftest import succeed

from silodp.models.kinds import ModelSettings
from silodp.models.start import read_start
from silodp.pretraining.recipe import Recipe, pretrain

UNET = ModelSettings.of(kind="unet", features=4, levels=2, affine=True)
RESNET = ModelSettings.of(kind="resnet", features=4, blocks=(1, 1), affine=True)


def small(kind: str, model: ModelSettings, steps: int, seed: int = 0) -> Recipe:
    return Recipe(kind, model, image_size=32, images=160, steps=steps, batch_size=16, seed=seed)


def test_training_improves_the_held_out_score() -> None:
    told: list[str] = []
    _, trained = pretrain(
        small("shapes", UNET, 160), torch.device("cpu"), lambda what, *far: told.append(what)
    )
    _, hardly = pretrain(small("shapes", UNET, 8), torch.device("cpu"), lambda *far: None)
    assert trained["dice"] > hardly["dice"] + 0.1
    assert set(told) == {"drawing", "training"}


def test_a_class_is_learnt_with_the_location_of_its_target() -> None:
    """The auxiliary layer is discarded: the network has only its own parameters."""
    network, held_out = pretrain(small("lesions", RESNET, 10), torch.device("cpu"), lambda *far: None)
    assert set(dict(network.named_parameters())) == set(dict(RESNET.make(1, 2).named_parameters()))
    assert 0 <= held_out["auc"] <= 1


@pytest.mark.parametrize(("kind", "model"), [("shapes", UNET), ("lesions", RESNET)], ids=["unet", "resnet"])
def test_same_seed_same_start(kind: str, model: ModelSettings) -> None:
    """Whatever was drawn before; the auxiliary layer, which steers what the network learns, included."""
    states = []
    for elsewhere, seed in ((1, 0), (2, 0), (1, 1)):
        torch.manual_seed(elsewhere)
        network, _ = pretrain(small(kind, model, 9, seed), torch.device("cpu"), lambda *far: None)
        states.append(torch.cat([value.flatten() for value in network.state_dict().values()]))
    first, again, other = states
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_command_writes_a_start_and_its_card(tmp_path: Path) -> None:
    out = tmp_path / "start.safetensors"
    options = ["--images", 16, "--steps", 8, "--batch-size", 8, "--image-size", 32, "--set", "features=2"]
    done = succeed("pretrain", "shapes", "--out", out, *options, "--set", "levels=2")
    assert "drawing: 2/2" in done.stderr
    assert "training: 8/8" in done.stderr
    about = read_start(str(out)).about
    assert about["model"]["features"] == 2
    assert (about["origin"], about["kind"], about["seed"]) == ("generated", "shapes", 0)
    assert "No image of a patient was used" in (tmp_path / "start.md").read_text()
    assert "start.safetensors: on held-out generated images, dice 0." in done.stdout
