import copy
import math
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from silodp import Examples
from silodp.local.jobs import Job, Sequential, draw_job
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.steps import batch_count, planned_steps
from silodp.local.trainer import LocalTrainer, average_states, network_input
from silodp.tasks import task_named

CPU = torch.device("cpu")
TASK = task_named("segmentation")


def examples(count: int = 12) -> Examples:
    images = torch.randn(count, 1, 16, 16, generator=seeded(0))
    return Examples(images, (images > 0.5).float())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth_network() -> nn.Module:
    """No gradient is zero, so Adam's steps do not hang on the last bit of rounding."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1))


def trainer(**settings: object) -> LocalTrainer:
    torch.manual_seed(0)
    return LocalTrainer(FlatModel(smooth_network(), CPU), TASK, LocalSettings.of(**settings))


@given(st.integers(2, 500), st.integers(2, 64))
def test_batches_are_near_equal_and_never_of_one_image(samples: int, batch_size: int) -> None:
    sizes = [len(part) for part in torch.arange(samples).tensor_split(batch_count(samples, batch_size))]
    assert min(sizes) >= 2
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= max(batch_size, 3)


@pytest.mark.parametrize(
    ("samples", "epochs", "steps"),
    [(80, 1.0, 10), (80, 3.0, 30), (80, 1 / 3, 3), (2, 1.0, 1), (9, 1.0, 2), (2, 0.1, 1)],
)
def test_planned_steps(samples: int, epochs: float, steps: int) -> None:
    assert planned_steps(samples, LocalSettings.of(batch_size=8, epochs=epochs)) == steps


def test_the_normaliser_is_that_of_constant_gradients() -> None:
    """a is how far τ steps of SGD go under a constant gradient of one, in units of the learning rate."""
    for momentum in (0.0, 0.5, 0.9):
        for steps in (1, 3, 10):
            point = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
            sgd = torch.optim.SGD([point], lr=1.0, momentum=momentum)
            for _ in range(steps):
                point.grad = -torch.ones(1, dtype=torch.float64)
                sgd.step()
            settings = LocalSettings.of(optimizer="sgd", momentum=momentum)
            assert settings.reach(steps) == pytest.approx(point.item())
    assert LocalSettings.of(optimizer="adam").reach(7) == 7


@pytest.mark.parametrize(
    ("optimizer", "settings", "plainly"),
    [
        ("adam", {}, partial(torch.optim.Adam, amsgrad=True)),
        ("adam", {"amsgrad": False}, torch.optim.Adam),
        ("sgd", {}, partial(torch.optim.SGD, momentum=0.9)),
        ("sgd", {"momentum": 0.0}, torch.optim.SGD),
    ],
)
def test_training_on_flat_buffers_equals_plain_pytorch(
    optimizer: str, settings: dict[str, object], plainly: Callable[..., torch.optim.Optimizer]
) -> None:
    local = trainer(optimizer=optimizer, learning_rate=0.01, batch_size=4, epochs=2, **settings)
    plain = copy.deepcopy(local.model.module)
    start = local.model.values.clone()
    data = examples()
    state = local.fresh_state()
    local.train(draw_job(start, data, state, local.settings, seeded(3)))

    for parameter in plain.parameters():
        parameter.data = parameter.data.clone().contiguous()
        parameter.grad = None
    other = plainly(plain.parameters(), lr=0.01)
    generator = seeded(3)
    for _ in range(2):
        for batch in torch.randperm(12, generator=generator).tensor_split(3):
            other.zero_grad()
            TASK.loss(plain(data.images[batch]), data.targets[batch]).backward()
            other.step()
    for one, two in zip(local.model.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_kept_state_goes_on_and_fresh_state_starts_again() -> None:
    local = trainer(learning_rate=0.01, batch_size=4)
    start, state = local.model.values.clone(), local.fresh_state()
    local.train(draw_job(start, examples(), state, local.settings, seeded(0)))
    assert float(state["step"]) == 3
    assert float(state["exp_avg"].abs().sum()) > 0
    kept = local.model.values.clone()
    local.train(draw_job(start, examples(), local.fresh_state(), local.settings, seeded(0)))
    torch.testing.assert_close(local.model.values, kept)
    local.train(draw_job(start, examples(), state, local.settings, seeded(0)))
    assert not torch.allclose(local.model.values, kept)


def test_states_are_averaged_and_do_not_share_memory() -> None:
    states = [{"exp_avg": torch.full((3,), float(k)), "step": torch.tensor(float(k))} for k in (1, 3)]
    averaged = average_states(states, 3)
    assert len(averaged) == 3
    averaged[0]["exp_avg"] += 1
    torch.testing.assert_close(averaged[1]["exp_avg"], torch.full((3,), 2.0))
    assert float(averaged[2]["step"]) == 2.0


def test_bytes_become_minus_one_to_one_and_floats_stay() -> None:
    bytes_ = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)
    assert network_input(bytes_).flatten().tolist() == [-1.0, 1.0]
    assert network_input(torch.full((1, 1, 1, 1), 7.5)).item() == 7.5


def test_dropout_follows_the_jobs_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout is the same for the same generator; and no stack is formatted for GPUs that nobody uses."""
    monkeypatch.setattr(traceback, "format_stack", None)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(4, 1, 3, padding=1))
    local = LocalTrainer(FlatModel(network, CPU), TASK, LocalSettings.of(optimizer="sgd", learning_rate=0.1))
    start, results = local.model.values.clone(), []
    for seed in (1, 1, 2):
        chance = seeded(seed)
        local.train(
            draw_job(start, examples(4), local.fresh_state(), local.settings, chance)
        )  # one batch: the order does not count
        results.append(local.model.values.clone())
        torch.rand(3)  # others draw in between
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize(("augmentation", "epochs"), [("none", 1.0), ("affine-flip", 2.5), ("none", 0.4)])
def test_all_randomness_of_a_job_is_drawn_beforehand(augmentation: str, epochs: float) -> None:
    """Nothing moves the generators while it trains, and the same job done again gives the same numbers."""
    local = trainer(learning_rate=0.01, batch_size=4, augmentation=augmentation, epochs=epochs)
    chance, start = seeded(5), local.model.values.clone()
    job = draw_job(start, examples(), local.fresh_state(), local.settings, chance)
    before = chance.get_state()
    local.train(job)
    first, drawn = local.model.values.clone(), torch.get_rng_state()
    assert torch.equal(chance.get_state(), before)
    torch.default_generator.manual_seed(job.seed)
    assert torch.equal(torch.get_rng_state(), drawn)  # the network has no chance of its own
    local.train(replace(job, state=local.fresh_state()))
    assert torch.equal(local.model.values, first)


@given(st.integers(2, 60), st.floats(0.1, 3), st.integers(2, 9))
def test_an_epoch_has_every_image_once(samples: int, epochs: float, batch_size: int) -> None:
    settings = LocalSettings.of(batch_size=batch_size, epochs=epochs, augmentation="affine-flip")
    job = draw_job(torch.zeros(1), examples(samples), {}, settings, seeded(1))
    assert len(job.batches) == planned_steps(samples, settings)
    assert [tuple(moves.shape) for moves in job.moves] == [(len(batch), 4) for batch in job.batches]
    count = batch_count(samples, batch_size)
    for epoch in range(0, len(job.batches) - count + 1, count):
        seen = torch.cat(job.batches[epoch : epoch + count])
        assert sorted(seen.tolist()) == list(range(samples))


def test_a_job_that_fails_leaves_the_others_alone() -> None:
    local = trainer(optimizer="sgd", learning_rate=0.1, batch_size=4)
    start, data = local.model.values.clone(), examples()

    def jobs(*kinds: Examples) -> list[Job]:
        return [draw_job(start, one, local.fresh_state(), local.settings, torch.Generator()) for one in kinds]

    bad = Examples(data.images[:, :, :3, :2], data.targets)  # masks of another size
    done = [(o.values.clone(), float(o.loss), o.error) for o in Sequential(local).run(jobs(data, bad, data))]
    assert [error is None for _, _, error in done] == [True, False, True]
    assert bool(done[1][0].isnan().all())
    assert math.isnan(done[1][1])
    assert torch.equal(done[0][0], done[2][0])
