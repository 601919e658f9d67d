"""Recorded steps are those of one after the other, to the last bit. All of it needs a GPU."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from silodp import Examples
from silodp.local.captured import Captured
from silodp.local.executors import executor_named
from silodp.local.jobs import Job, Outcome, Sequential, draw_job
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.trainable import freeze_all_but
from silodp.local.trainer import LocalTrainer
from silodp.models import build_model
from silodp.models.kinds import ModelSettings
from silodp.noise.streams import seeded_noise
from silodp.tasks import task_named

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GPU = torch.device("cuda")


def unet(norm: str = "group") -> nn.Module:
    return build_model(ModelSettings.of(features=4, levels=2, norm=norm, affine=True), 1, 1, 0)


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = unet()

    def forward(self, images: Tensor) -> Tensor:
        if images.mean() > 1e6:
            raise ValueError("too bright")
        return self.inner(images)  # type: ignore[no-any-return]


def of(network: nn.Module, **settings: Any) -> LocalTrainer:
    local = LocalSettings.of(**{"learning_rate": 0.01, "batch_size": 4} | settings)
    return LocalTrainer(FlatModel(network, GPU), task_named("segmentation"), local)


def jobs(trainer: LocalTrainer, sizes: list[int], kept: bool = False) -> list[Job]:
    start, found = trainer.model.values.clone(), []
    for number, size in enumerate(sizes):
        chance = torch.Generator(GPU).manual_seed(number)
        images = torch.randn(size, 1, 16, 16, generator=chance, device=GPU)
        examples = Examples(images, (images > 0.3).float())
        state = trainer.fresh_state() if kept else None
        found.append(draw_job(start, examples, state, trainer.settings, chance))
    return found


def copied(done: Any) -> list[Outcome]:
    return [Outcome(one.values.clone(), one.loss.clone(), one.error) for one in done]


def assert_same(one: list[Outcome], other: list[Outcome]) -> None:
    assert len(one) == len(other)
    for mine, yours in zip(one, other, strict=True):
        assert torch.equal(mine.values, yours.values)
        torch.testing.assert_close(mine.loss, yours.loss, equal_nan=True)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "sgd"}, {"augmentation": "affine-flip", "epochs": 2.5}, {"amsgrad": False}],
    ids=str,
)
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_the_same_as_one_after_the_other(norm: str, settings: dict[str, Any], lanes: int) -> None:
    """With remainder batches, unlike jobs, and states that go on."""
    trainer = of(unet(norm), **settings)
    sizes = [10, 10, 10, 10, 9, 9, 4]
    for kept in (False, True):
        plain, beside = jobs(trainer, sizes, kept), jobs(trainer, sizes, kept)
        captured = Captured(trainer, lanes)
        for _ in range(2):
            assert_same(copied(Sequential(trainer).run(plain)), copied(captured.run(iter(beside))))
        for mine, yours in zip(plain, beside, strict=True):
            for name, tensor in (mine.state or {}).items():
                assert yours.state is not None
                assert torch.equal(tensor, yours.state[name])


def test_recorded_steps_with_few_trainable_parameters() -> None:
    trainer = of(freeze_all_but(unet(), "norm+head"))
    group = jobs(trainer, [8] * 4)
    assert_same(copied(Sequential(trainer).run(group)), copied(Captured(trainer).run(group)))


def test_no_bit_depends_on_what_the_others_have() -> None:
    trainer = of(unet())
    group = jobs(trainer, [8] * 4)
    captured = Captured(trainer, 4)
    before = copied(captured.run(group))
    images = torch.full_like(group[2].examples.images, math.nan)
    group[2] = replace(group[2], examples=replace(group[2].examples, images=images))
    after = copied(captured.run(group))
    assert not torch.isfinite(after[2].values).all()
    for place in (0, 1, 3):
        assert torch.equal(before[place].values, after[place].values)


@pytest.mark.parametrize("network", [LooksAtValues, lambda: nn.Sequential(unet(), nn.Dropout(0.5))])
def test_networks_that_branch_on_values_or_draw_are_not_recorded(network: Callable[[], nn.Module]) -> None:
    """They train one after the other: what a job gets hangs on its own seed, whoever is beside it."""
    trainer = of(network())
    group = jobs(trainer, [8] * 4)
    captured = Captured(trainer, 4)
    for _ in range(2):
        assert_same(copied(captured.run(group)), copied(Sequential(trainer).run(group)))
    assert_same([copied(captured.run([job]))[0] for job in group], copied(Sequential(trainer).run(group)))


def test_auto_chooses_an_executor() -> None:
    trainer = of(unet())
    some = jobs(trainer, [4])[0].examples
    assert isinstance(executor_named("auto", trainer, some), Captured)
    assert isinstance(executor_named("sequential", trainer, some), Sequential)


def test_seeded_noise_on_a_gpu() -> None:
    """The same for the same sum, unrelated for another that differs in one number, and normal."""
    hidden = torch.arange(100_000, dtype=torch.float64, device=GPU)
    other = hidden.clone()
    other[77] += 1
    draw = seeded_noise(3, 7)
    first, again, third, fourth = (
        draw(hidden, "x", 100_000), draw(hidden, "x", 100_000), draw(other, "x", 100_000),
        seeded_noise(3, 8)(hidden, "x", 100_000),
    )  # fmt: skip
    assert torch.equal(first, again)
    assert first.device.type == "cuda"
    for unrelated in (third, fourth):
        assert abs(float(torch.corrcoef(torch.stack([first, unrelated]))[0, 1])) < 5 / math.sqrt(100_000)
    assert abs(float(first.mean())) < 5 / math.sqrt(100_000)
    assert float(first.std()) == pytest.approx(1, abs=5 / math.sqrt(200_000))
