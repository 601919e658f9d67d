"""DP-SGD at the hospitals: what one image can move, the noise on it, and the ε that follows."""

import copy
import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import Picky, assert_same_files, blob_cohort, killed_run, records
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from silodp import Cohort, Examples, Experiment, InputError, resume, train, with_norm
from silodp.experiment import delta_by_rule
from silodp.local.jobs import draw_job
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.sample_level import SampleLevel, sample_level
from silodp.local.trainer import LocalTrainer
from silodp.models.unet import UNet
from silodp.noise.lattice import spacing
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.settings import PrivacySettings
from silodp.tasks import Task, task_named

CPU = torch.device("cpu")
SEGMENTATION = task_named("segmentation")
CLASSIFICATION = task_named("classification")


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unet() -> FlatModel:
    torch.manual_seed(0)
    return FlatModel(UNet(1, 1, 2, "group"), CPU)


def classifier() -> FlatModel:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(196, 3))
    return FlatModel(nn.Sequential(*layers), CPU)


def batch(count: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images with squares of many sizes, so that gradients differ much in length."""
    images = torch.randn(count, 1, 16, 16, generator=chance(seed))
    masks = torch.zeros(count, 1, 16, 16)
    for number, mask in enumerate(masks):
        side = 2 + (3 * number + seed) % 13
        mask[0, :side, :side] = 1
    return images + masks, masks


def filled(
    model: FlatModel, level: SampleLevel, images: Tensor, targets: Tensor, task: Task = SEGMENTATION
) -> Tensor:
    model.module.train()
    with level.gradients(model, task.image_losses, chance().initial_seed()) as fill:
        fill(images, targets)
    return model.gradients.clone()


def single_gradients(model: FlatModel, images: Tensor, targets: Tensor, task: Task) -> Tensor:
    """By plain autograd, one image after the other."""
    rows = []
    for number in range(len(images)):
        model.gradients.zero_()
        task.loss(model.module(images[[number]]), targets[[number]]).backward()
        rows.append(model.gradients.clone())
    return torch.stack(rows)


@pytest.mark.parametrize("quantile", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("make", "task"), [(unet, SEGMENTATION), (classifier, CLASSIFICATION)], ids=["unet", "classifier"]
)
def test_the_gradient_is_the_mean_of_clipped_gradients_of_single_images(
    make: object, task: Task, quantile: float
) -> None:
    model: FlatModel = make()  # type: ignore[operator]
    images, targets = batch()
    if task is CLASSIFICATION:
        targets = torch.arange(len(images)) % 3
    singles = single_gradients(model, images, targets, task)
    norms = singles.norm(dim=1)
    assert norms.max() > 1.05 * norms.min()
    bound = float(norms.quantile(quantile))  # all, half or none of them are longer
    expected = (singles * (bound / norms).clamp(max=1)[:, None]).mean(0)
    seen = filled(model, SampleLevel(0.0, bound), images, targets, task)
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_no_image_weighs_more_than_the_bound_and_short_gradients_stay() -> None:
    for number in range(4):
        images, masks = (part[[number]] for part in batch())
        whole = float(filled(unet(), SampleLevel(0.0, 1e9), images, masks).double().norm())
        for bound in (1e-6 * whole, whole / 2, whole * 2):
            size = float(filled(unet(), SampleLevel(0.0, bound), images, masks).double().norm())
            assert size <= bound
            assert size == pytest.approx(min(whole, bound), rel=1e-5)


def test_clipping_is_exact_for_layers_of_millions_of_weights() -> None:
    """Opacus' own norms are 0.01 % too small here, which would leave the gradient above the bound."""
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(3000, 1500, bias=False)), CPU)
    images = torch.randn(2, 1, 50, 60)
    task = replace(CLASSIFICATION, image_losses=lambda logits, _: 1e3 * logits.tanh().sum(1))
    seen = filled(model, SampleLevel(0.0, 0.5), images[[0, 0]], torch.zeros(2), task)
    assert float(seen.double().norm()) == pytest.approx(0.5, rel=2e-6)
    assert float(seen.double().norm()) <= 0.5


@pytest.mark.parametrize(("noise", "bound", "count"), [(1.0, 1.0, 2), (0.5, 3.0, 6), (4.0, 0.01, 5)])
@pytest.mark.parametrize("reproducible", [True, False])
def test_noise_is_z_times_c_over_the_batch_size(
    noise: float, bound: float, count: int, reproducible: bool
) -> None:
    model, (images, masks) = unet(), batch(count)
    clean = filled(model, SampleLevel(0.0, bound), images, masks)
    added = filled(model, SampleLevel(noise, bound, reproducible), images, masks) - clean
    standard = added.double() / (noise * bound / count)
    size = len(standard)
    assert abs(float(standard.mean())) < 5 / math.sqrt(size)
    assert float(standard.square().mean()) == pytest.approx(1, abs=5 * math.sqrt(2 / size))
    assert float(standard.pow(4).mean()) == pytest.approx(3, abs=5 * math.sqrt(96 / size))


def test_sum_and_noise_lie_on_the_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of less than half its spacing is rounded away, and whole multiples of it are left."""
    model, bound = unet(), 1.0
    unit = spacing(bound, len(model))
    small = 0.3 * unit / bound
    monkeypatch.setattr(
        "silodp.local.sample_level.seeded_noise",
        lambda *_: lambda hidden, _, count: small + 0 * hidden[:count],
    )
    points = 2 * filled(model, SampleLevel(1.0, bound), *batch(2)).double() / unit
    exact = points[points.abs() < 2**24]  # in single precision
    assert len(exact) > 0.9 * len(points)
    assert torch.equal(exact, exact.round())
    assert float(exact.abs().max()) > 2**20


@pytest.mark.parametrize("count", [2, 1000])
def test_noise_also_hides_the_rounding_in_a_sum_of_many_images(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of n additions is off by 2⁻²⁴·n·c at most, with the image and without: of 1000, 12 % of c."""
    monkeypatch.setattr(
        "silodp.local.sample_level.seeded_noise",
        lambda *_: lambda hidden, _, count: torch.ones(count, dtype=torch.float64),
    )
    model, noise, bound = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 1)), CPU), 3.0, 0.5
    nothing = replace(SEGMENTATION, image_losses=lambda logits, _: 0 * logits.sum(1))
    images = torch.zeros(count, 1, 2, 2)
    std = count * filled(model, SampleLevel(noise, bound), images, images, nothing).double()
    needed = noise * bound * (1 + 2 * 2.0**-24 * count**2)
    assert float(std.min()) >= needed
    assert float(std.max()) == pytest.approx(needed, rel=1e-5)


def test_noise_is_unrelated_between_steps_hospitals_and_data_and_the_same_when_redone() -> None:
    model, level = unet(), SampleLevel(1.0, 1e-4)  # so small a bound that the gradient is noise alone
    drawn: list[Tensor] = []
    for seed, data, steps in ((0, 0, 3), (1, 0, 1), (0, 1, 1)):
        with level.gradients(model, SEGMENTATION.image_losses, chance(seed).initial_seed()) as fill:
            for _ in range(steps):
                fill(*batch(4, data))
                drawn.append(model.gradients.double())
    related = torch.corrcoef(torch.stack(drawn)) - torch.eye(len(drawn))
    assert float(related.abs().max()) < 5 / math.sqrt(len(model)) + 4 * 4e-3  # √d·c beside c
    assert torch.equal(filled(model, level, *batch(4)), drawn[0].float())
    assert not torch.equal(
        filled(model, replace(level, reproducible=False), *batch(4)),
        filled(model, replace(level, reproducible=False), *batch(4)),
    )


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("augmentation", ["none", "affine-flip"])
def test_without_noise_and_clipping_it_is_plain_training_on_the_mean_over_images(
    optimizer: str, augmentation: str
) -> None:
    local = LocalSettings.of(optimizer=optimizer, augmentation=augmentation, batch_size=4, learning_rate=0.01)
    mean = replace(SEGMENTATION, loss=lambda *pair: SEGMENTATION.image_losses(*pair).mean())
    plain = LocalTrainer(smooth(), mean, local)
    private = LocalTrainer(smooth(), SEGMENTATION, local, SampleLevel(0.0, 1e9))
    states = plain.fresh_state(), private.fresh_state()
    for trainer, state in zip((plain, private), states, strict=True):
        start, data = trainer.model.values.clone(), Examples(*batch(10))
        losses = [trainer.train(draw_job(start, data, state, local, chance(seed))) for seed in (3, 4)]
    torch.testing.assert_close(private.model.values, plain.model.values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[1], states[0], rtol=1e-3, atol=1e-5)
    assert 0 < float(losses[-1]) < 1


def smooth() -> FlatModel:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1))
    return FlatModel(nn.Sequential(*layers), CPU)


def one_step(images: Tensor, masks: Tensor, bound: float, task: Task) -> Tensor:
    """What one step of plain SGD with learning rate 1 takes away from the weights."""
    local = LocalSettings.of(optimizer="sgd", momentum=0.0, learning_rate=1.0, batch_size=64)
    trainer = LocalTrainer(smooth(), task, local, SampleLevel(0.0, bound))
    start = trainer.model.values.clone()
    trainer.train(draw_job(start, Examples(images, masks), trainer.fresh_state(), local, chance()))
    return (start - trainer.model.values).double()


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(0, 5), st.floats(0.01, 100), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_replacing_an_image_moves_a_step_by_at_most_two_bounds_over_the_batch_size(
    count: int, place: int, bound: float, scale: float, seed: int
) -> None:
    images, masks = batch(count, seed)
    others, other_masks = batch(count, seed + 1)
    changed, changed_masks = images.clone(), masks.clone()
    changed[place % count], changed_masks[place % count] = scale * others[0], 1 - other_masks[0]
    before = one_step(images, masks, bound, SEGMENTATION)
    after = one_step(changed, changed_masks, bound, SEGMENTATION)
    assert float((before - after).norm()) <= 2 * bound / count * (1 + 1e-5) + 1e-6
    left = [number for number in range(count) if number != place % count]
    without = one_step(images[left], masks[left], bound, SEGMENTATION)
    assert float((count * before - (count - 1) * without).norm()) <= bound * (1 + 1e-5) + 1e-5


def test_soft_dice_over_the_batch_would_break_the_bound() -> None:
    """The control: one large gland in the batch changes the gradients of all the others."""
    coupled = replace(SEGMENTATION, image_losses=lambda *pair: SEGMENTATION.loss(*pair)[None])
    images, masks = batch(6)
    masks[:] = 0
    masks[:, :, :2, :2] = 1
    changed = masks.clone()
    changed[0] = 1
    bound = 0.003
    moved = {
        name: float((one_step(images, masks, bound, task) - one_step(images, changed, bound, task)).norm())
        for name, task in (("single", SEGMENTATION), ("coupled", coupled))
    }
    assert moved["single"] <= 2 * bound / 6 * (1 + 1e-5)
    assert moved["coupled"] > 2 * (2 * bound / 6)


@pytest.mark.parametrize("task", [SEGMENTATION, CLASSIFICATION], ids=["segmentation", "classification"])
def test_the_loss_of_an_image_hangs_on_no_other_image(task: Task) -> None:
    images, masks = batch(4)
    logits = images if task is SEGMENTATION else images.flatten(1)[:, :3].contiguous()
    targets = masks.byte() if task is SEGMENTATION else torch.tensor([0, 1, 2, 1])
    together = task.image_losses(logits, targets)
    alone = [task.loss(logits[[number]], targets[[number]]) for number in range(4)]
    torch.testing.assert_close(together, torch.stack(alone))


def at_sample_level(experiment: Experiment, **changes: object) -> Experiment:
    return experiment.change(
        privacy__level="sample",
        intermediaries__count=1,
        clipping__rule="none",
        model__norm="group",
        privacy__noise_multiplier=2.0,
        **changes,
    )


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(("epochs", "passes", "steps"), [(1.0, 1, 3), (2.0, 2, 6)])
def test_epsilon_of_a_run_is_the_closed_form(
    epochs: float, passes: int, steps: int, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """Three hospitals of 12 training images in batches of 4, three rounds, z = 2."""
    private = at_sample_level(experiment, local__epochs=epochs, local__batch_size=4)
    result = train(private, cohort=cohort, out=tmp_path / "run", device="cpu")
    image = gaussian_epsilon(math.sqrt(3 * passes) / 2, delta_by_rule(36))
    assert result.epsilon.image == pytest.approx(image)
    assert result.epsilon.hospital == pytest.approx(gaussian_epsilon(4 * math.sqrt(3 * steps) / 2, 0.1))
    assert result.epsilon.intermediary == result.epsilon.hospital  # hospitals are not split
    events = records(tmp_path / "run", "ledger.jsonl")
    assert len(events) == 3
    for event in events:
        line = json.dumps(event)
        assert '"part": "image"' in line
        assert f'"steps": {steps}' in line
        assert f'"passes": {passes}' in line
    assert all(math.isfinite(value) for value in result.test.values())


@pytest.mark.parametrize("changes", [{}, {"local__optimizer": "sgd"}, {"local__state": "fresh"}])
def test_a_run_again_and_a_run_resumed_give_the_same_weights(
    changes: dict[str, object], experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    private = at_sample_level(experiment, rounds=2, **changes)
    train(private, cohort=cohort, out=tmp_path / "one", device="cpu")
    train(private, cohort=cohort, out=tmp_path / "two", device="cpu")
    killed_run(private, 1, cohort=cohort, out=tmp_path / "cut")
    resume(tmp_path / "cut", cohort=cohort, device="cpu")
    for other in ("two", "cut"):
        assert_same_files(tmp_path / "one", tmp_path / other)


def test_nothing_of_opacus_is_left_on_the_model(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    model = train(at_sample_level(experiment, rounds=1), cohort=cohort, out=tmp_path / "run").model
    for layer in model.modules():
        assert not layer._forward_hooks
        assert not layer._backward_hooks
        assert not hasattr(layer, "activations")
    for parameter in model.parameters():
        assert not vars(parameter)
    pickle.loads(pickle.dumps(copy.deepcopy(model)))


class Centred(nn.Module):
    """Mixes images without being called so: no gradient goes through, and it has no parameter."""

    def forward(self, images: Tensor) -> Tensor:
        return images - images.detach().mean()


class BatchNormOfTheirOwn(nn.BatchNorm2d):
    pass


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.used(images)


class Borrowed(Unused):
    """Its spare weight is used, but not in its own layer."""

    def forward(self, images: Tensor) -> Tensor:
        return self.used(images) + nn.functional.conv2d(images, self.spare.weight, padding=1)


def head(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *layers, nn.Conv2d(4, 1, 1))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (head(nn.BatchNorm2d(4, track_running_stats=False)), "layer '1' is BatchNorm2d.*with_norm.*'group'"),
        (UNet(1, 1, 2, "batch"), "layer 'down.0.1' is BatchNorm2d.*with_norm.*'group'"),
        (head(BatchNormOfTheirOwn(4, track_running_stats=False)), "Sequential mixes the images"),
        (head(Centred()), "Sequential mixes the images.*privacy.level=client"),
        (Unused(), "'spare.weight' image by image.*requires_grad"),
        (Borrowed(), "'spare.weight' image by image"),
        (nn.LSTM(16, 16), "LSTM.*ModuleValidator.fix"),
    ],
)
def test_models_that_mix_images_are_refused_before_anything_is_spent(
    model: nn.Module, words: str, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        train(at_sample_level(experiment), cohort=cohort, model=model, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_suggested_group_norm_is_accepted(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    model = with_norm(UNet(1, 1, 2, "batch"), "group")
    train(at_sample_level(experiment, rounds=1), cohort=cohort, model=model, out=tmp_path / "run")


def test_a_model_that_does_not_fit_the_images_is_refused_as_without_dp_sgd(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    for model in (nn.Conv2d(3, 1, 1), UNet(3, 1, 2, "group")):
        with pytest.raises(InputError, match="cannot train on 2 images"):
            train(at_sample_level(experiment), cohort=cohort, model=model, out=tmp_path / "run")
    with pytest.raises(InputError, match="multiples of 2 "):
        train(at_sample_level(experiment), cohort=blob_cohort(size=21), out=tmp_path / "run")


def test_layers_in_place_biases_before_a_norm_dropout_and_frozen_weights_are_fine() -> None:
    """In place: Opacus' hooks would fail. A bias before a norm has no gradient but rounding."""
    layers = (
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Conv2d(4, 4, 1),
        nn.GroupNorm(2, 4),
    )
    module = head(*layers, nn.ReLU(inplace=True))
    for parameter in module[4].parameters():
        parameter.requires_grad_(False)
    model = FlatModel(module, CPU)
    before = torch.random.get_rng_state()
    level = sample_level(PrivacySettings(level="sample", entropy="system"), model, torch.Size((1, 16, 16)))
    assert not level.reproducible
    assert torch.equal(before, torch.random.get_rng_state())
    assert float(model.gradients.abs().max()) == 0
    assert float(filled(model, level, *batch()).norm()) > 0


def test_an_image_with_a_nan_gradient_counts_as_zero_and_affects_no_other() -> None:
    images, targets = batch(4)
    harmed = images.clone()
    harmed[2] = math.inf
    model, level = unet(), SampleLevel(0.0, 0.1)
    three = [0, 1, 3]
    without = filled(model, level, images[three], targets[three]) * 3 / 4
    with_it = filled(model, level, harmed, targets)
    assert bool(torch.isfinite(with_it).all())
    torch.testing.assert_close(with_it, without, rtol=1e-4, atol=1e-7)


def test_an_image_that_the_network_refuses_counts_as_zero_and_affects_no_other() -> None:
    """An own network that raises on some images: one of them must not take its hospital's step with it."""
    images, targets = batch(4)
    harmed = images.clone()
    harmed[2] = 99.0
    model, level = FlatModel(Picky(smooth().module), CPU), SampleLevel(0.0, 0.1)
    three = [0, 1, 3]
    without = filled(model, level, images[three], targets[three]) * 3 / 4
    torch.testing.assert_close(filled(model, level, harmed, targets), without, rtol=1e-4, atol=1e-7)
    nobody = filled(model, level, torch.full_like(images, 99.0), targets)
    assert float(nobody.abs().max()) == 0
    noise = filled(model, SampleLevel(1.0, 0.1), torch.full_like(images, 99.0), targets)
    assert float(noise.std()) == pytest.approx(0.1 / 4, rel=0.5)
