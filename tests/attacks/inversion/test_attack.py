"""Gradient inversion succeeds where it should, fails under noise, and says which is which."""

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import blob_cohort
from safetensors.torch import save
from torch import nn

from silodp import Cohort, Experiment, InputError, train
from silodp.attacks.inversion import AttackResult, AttackSettings, Search, invert
from silodp.attacks.inversion.attack import _intermediaries, _others
from silodp.attacks.inversion.descent import total_variation
from silodp.attacks.inversion.output import shows_patients, verdict, write_attack
from silodp.attacks.inversion.search import Observed, flatten, invert_update
from silodp.attacks.inversion.views import released
from silodp.cohorts import load_cohort
from silodp.local.parameters import FlatModel
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.runs.build import build
from silodp.runs.folder import read_experiment

SMALL = {
    "segmentation": Experiment.load("demo", ["cohort.image_size=32", "cohort.slices=60", "model.features=1"]),
    "classification": Experiment.load(
        "ich-small",
        [
            "cohort.image_size=32", "cohort.slices=100", "cohort.channels=1", "model.features=4",
            "model.growth=2", "model.blocks=[1,1]", "intermediaries.rule=fixed", "intermediaries.count=3",
        ],
    ),
}  # fmt: skip
SEEN = ("control", "DP-FedAvg", "intermediaries")


@pytest.fixture(scope="module", params=list(SMALL))
def attacked(request: pytest.FixtureRequest) -> AttackResult:
    settings = AttackSettings(images=1, views=SEEN, search=Search(restarts=1, iterations=200))
    experiment = SMALL[request.param].change(privacy__noise_multiplier=0.3)
    return invert(experiment, settings=settings)


def test_it_succeeds_without_noise_and_fails_with_it(attacked: AttackResult) -> None:
    """SSIM of at least 0.5 on 32² images from a bare update; under noise no more than a blind guess."""
    control = attacked.scores["control"]
    assert min(control.ssim) >= 0.5
    assert min(control.ssim) > max(control.baseline_ssim) + 0.2
    for name in attacked.scores.keys() - {"control"}:
        score = attacked.scores[name]
        assert score.mean_ssim < sum(score.baseline_ssim) / len(score.baseline_ssim) + 0.1
    assert "works where it should" in verdict(attacked)


def test_each_view_has_the_epsilon_of_its_round(attacked: AttackResult) -> None:
    """z = 0.3, one round; a hospital of v intermediaries has z/v."""
    delta = 0.1 if attacked.cohort == "synthetic-mri" else 0.01
    v = attacked.intermediaries
    assert math.isinf(attacked.scores["control"].epsilon_hospital)
    whole = attacked.scores["DP-FedAvg"]
    assert whole.epsilon_hospital == whole.epsilon_intermediary == gaussian_epsilon(1 / 0.3, delta)
    if v > 1:
        split = attacked.scores["intermediaries"]
        assert split.epsilon_hospital == gaussian_epsilon(v / 0.3, delta)
        assert split.epsilon_intermediary == whole.epsilon_intermediary


def test_files(attacked: AttackResult, tmp_path: Path) -> None:
    write_attack(attacked, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "attack.json",
        "attack.csv",
        "attack.md",
        "sheet.png",
    }
    found = json.loads((tmp_path / "attack.json").read_text())
    assert found["views"]["control"]["ssim"] == pytest.approx(attacked.scores["control"].mean_ssim)
    with (tmp_path / "attack.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(attacked.originals) * len(attacked.scores)
    header = (tmp_path / "attack.md").read_text().splitlines()[0]
    assert header.index("ε hospital") < header.index("ε intermediary")
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert not shows_patients(attacked)
    write_attack(replace(attacked, cohort="clinic"), tmp_path / "real")
    sheets = [(folder / "sheet.png").read_bytes() for folder in (tmp_path, tmp_path / "real")]
    assert sheets[0] != sheets[1], "the second one carries a warning"


def test_the_scores_are_those_of_the_pictures(attacked: AttackResult) -> None:
    """PSNR by hand: 10·log10(2²/mean squared error) on images between −1 and 1."""
    guesses, truth = attacked.guesses["control"], attacked.originals
    for number, value in enumerate(attacked.scores["control"].psnr):
        error = float(((guesses[number] - truth[number]) ** 2).mean())
        assert value == pytest.approx(10 * math.log10(4 / error), rel=1e-4)
    assert float(guesses.abs().max()) <= 1


def test_a_failing_control_is_called_that(attacked: AttackResult) -> None:
    control = replace(attacked.scores["control"], ssim=[0.1])
    told = verdict(replace(attacked, scores={"control": control}))
    assert "does not work even there" in told


def test_noise_is_added_by_the_mechanism() -> None:
    """zC a coordinate on the sum, C the update's own length; v intermediaries make it v times as long."""
    experiment = SMALL["segmentation"].change(privacy__noise_multiplier=0.5)
    update = torch.zeros(40_000)
    update[0] = 2.0
    for v in (1, 4):
        noise = released(experiment, update, v)
        assert float(noise[1:].std()) == pytest.approx(0.5 * 2.0, rel=0.02)
        assert float(noise[0]) == pytest.approx(v * 2.0, abs=5)
    silent = released(experiment.change(privacy__noise_multiplier=0.0), update, 1)
    assert torch.allclose(silent, update, atol=1e-5)


def test_gradients_lie_in_the_order_of_the_flat_model() -> None:
    model = FlatModel(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 2)), torch.device("cpu"))
    loss = model.module(torch.randn(2, 2, 6, 6)).square().sum()
    gradients = torch.autograd.grad(loss, list(model.module.parameters()), retain_graph=True)
    loss.backward()
    assert torch.allclose(flatten(gradients), model.gradients)


def test_the_best_of_several_starts_wins() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    image, label = torch.linspace(-1, 1, 16).view(1, 1, 4, 4), torch.tensor([1])
    loss = nn.functional.cross_entropy
    update = -flatten(torch.autograd.grad(loss(network(image), label), list(network.parameters())))
    observed = Observed(network, loss, update, 0.0, tuple(image.shape), label, (1,))
    found = [
        invert_update(observed, Search(restarts, 5), torch.Generator().manual_seed(3)).mismatch
        for restarts in (1, 6)
    ]
    assert found[1] <= found[0]
    assert float(total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))) == 1.0


def test_v_of_an_experiment_counts_on_the_hospitals_that_are_expected() -> None:
    """Poisson sampling with a half expects three of six: v is √2 times as large, as in the federation."""
    members, seen = load_cohort(SMALL["segmentation"].cohort).hospitals, []
    for drawing in ({"rule": "all"}, {"rule": "poisson", "rate": 0.5}):
        drawn = SMALL["segmentation"].change(participation=drawing, intermediaries__rule="closed-form")
        parts = build(drawn, device="cpu")
        seen.append(_intermediaries(drawn, len(parts.model), members))
        assert seen[-1] == parts.first_state().intermediaries
    assert seen == [2, 3]  # √(z·√d/N) is 2.7 and 3.8 with z = 0.5 and d = 7,600


def test_an_attacker_knows_other_hospitals_images_and_none_of_the_victims() -> None:
    """With them a blind guess, which a reconstruction is measured against, would be better than it is."""
    cohort = blob_cohort(3, images=8)
    victim, *rest = cohort.hospitals
    assert torch.equal(_others(cohort), torch.cat([one.train.images for one in rest]))
    assert torch.equal(_others(Cohort("alone", (victim,))), victim.train.images)


def test_labels_can_be_found_along_with_the_image() -> None:
    """A class is read off the last layer (Zhao et al. 2020); a mask is an image of its own, and harder."""
    for task, iterations, least in (("classification", 200, 0.5), ("segmentation", 400, 0.2)):
        search = Search(restarts=1, iterations=iterations)
        settings = AttackSettings(images=1, labels="inferred", views=("control",), search=search)
        score = invert(SMALL[task], settings=settings).scores["control"]
        assert score.mean_ssim >= least
        assert score.mean_ssim > score.baseline_ssim[0] + 0.15


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    return train(SMALL["segmentation"].change(rounds=1), out=out, device="cpu").folder


def test_a_run_is_attacked_at_its_last_model(trained: Path) -> None:
    settings = AttackSettings(images=1, views=("own network",), search=Search(1, 5))
    last = invert(SMALL["segmentation"], run=trained, settings=settings)
    first = invert(SMALL["segmentation"], settings=settings)
    assert last.scores["own network"].mismatch != first.scores["own network"].mismatch
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    assert last.intermediaries == summary["intermediaries"]


VIEWS = {"control", "own network", "whole hospital", "DP-FedAvg", "own DP-FedAvg"}


def test_a_run_is_attacked_in_every_view_by_its_own_settings(trained: Path) -> None:
    settings = AttackSettings(images=1, search=Search(1, 2))
    found = invert(read_experiment(trained), run=trained, settings=settings)
    assert set(found.scores) == VIEWS | {"intermediaries", "own intermediaries"}


def test_an_experiment_whose_budget_sets_the_noise() -> None:
    tree = SMALL["segmentation"].model_dump(exclude_unset=True)
    tree |= {
        "privacy": {},
        "intermediaries": {"rule": "fixed"},
        "budget": {"epsilon": 8.0, "unit": "hospital", "sets_noise": True},
    }
    found = invert(Experiment.build(tree), settings=AttackSettings(images=1, search=Search(1, 2)))
    assert set(found.scores) == VIEWS
    assert 0 < found.scores["DP-FedAvg"].epsilon_hospital < 8  # of one round


def test_what_does_not_train_is_not_read() -> None:
    """Where all trains, this network's update gives away the input of a convolution; the head's does not."""
    settings = AttackSettings(images=1, views=("own network",), search=Search(1, 2))
    read = {
        trainable: invert(SMALL["segmentation"].change(model__trainable=trainable), settings=settings)
        for trainable in ("all", "head")
    }
    assert read["all"].scores["own network"].read
    assert not read["head"].scores["own network"].read


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model.safetensors", None, "no model yet; finish it with `silodp resume"),
        ("model.safetensors", b"nothing of the kind", "not a model of this experiment"),
        ("model.safetensors", save({"other": torch.zeros(1)}), "not a model of this experiment"),
        ("summary.json", None, "no result yet; finish it with `silodp resume"),
        ("summary.json", b"[]", "damaged; remove it and write it anew with `silodp resume"),
        ("summary.json", b"{}", "experiment is missing; remove it and write it anew with `silodp resume"),
    ],
)
def test_a_run_with_a_file_missing_or_damaged(
    trained: Path, tmp_path: Path, file: str, content: bytes | None, words: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / file).unlink()
    if content is not None:
        (run / file).write_bytes(content)
    with pytest.raises(InputError, match=words):
        invert(SMALL["segmentation"], run=run, settings=AttackSettings(images=1))


def test_an_experiment_is_split_as_far_as_its_smallest_hospital_goes() -> None:
    """60 slices: the smallest of six hospitals trains on few, so 500 parts of two images are out of reach."""
    experiment = SMALL["segmentation"].change(
        intermediaries__rule="fixed", intermediaries__count=500, intermediaries__min_samples=2
    )
    settings = AttackSettings(images=1, views=("intermediaries",), search=Search(1, 1))
    smallest = min(len(hospital.train) for hospital in load_cohort(experiment.cohort).hospitals)
    assert invert(experiment, settings=settings).intermediaries == smallest // 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (AttackSettings(images=0), "--images 0"),
        (AttackSettings(images=1, batch=2), "--batch 2"),
        (AttackSettings(images=10_000), "training images"),
        (AttackSettings(views=("everything",)), "view everything: choose among control, own network"),
    ],
)
def test_what_cannot_be_attacked(settings: AttackSettings, words: str) -> None:
    with pytest.raises(InputError, match=words):
        invert(SMALL["segmentation"], settings=settings)
