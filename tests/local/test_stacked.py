"""Intermediaries in one step are those of one after the other, and know nothing of each other."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from silodp import Examples, InputError
from silodp.local import stacked
from silodp.local.executors import executor_named
from silodp.local.jobs import Job, Outcome, Sequential, draw_job
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.sample_level import SampleLevel
from silodp.local.stacked import Stacked, can_stack
from silodp.local.trainable import freeze_all_but
from silodp.local.trainer import LocalTrainer
from silodp.models import build_model
from silodp.models.kinds import ModelSettings
from silodp.tasks import task_named

CPU = torch.device("cpu")
SGD = {"optimizer": "sgd", "learning_rate": 0.05, "batch_size": 4}
ADAM = {"optimizer": "adam", "learning_rate": 0.01, "batch_size": 4}


def classifier() -> nn.Module:
    """Every layer that is stacked in its own way, and some that PyTorch stacks."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), nn.BatchNorm2d(6, track_running_stats=False),
        nn.Tanh(), nn.Flatten(), nn.Linear(54, 3),
    )  # fmt: skip


def segmenter() -> nn.Module:
    return build_model(ModelSettings.of(features=2, levels=2, affine=True), 2, 1, 0)


def of(network: nn.Module, task: str, **settings: Any) -> LocalTrainer:
    return LocalTrainer(FlatModel(network, CPU), task_named(task), LocalSettings.of(**settings))


def examples(count: int, seed: int, task: str = "classification") -> Examples:
    chance = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 2, 16, 16, generator=chance)
    masks = (images[:, :1] > 0.3).float()
    return Examples(images, masks if task == "segmentation" else torch.arange(count) % 3)


def jobs(trainer: LocalTrainer, sizes: list[int], kept: bool = False) -> list[Job]:
    start = trainer.model.values.clone()
    return [
        draw_job(
            start,
            examples(size, number, trainer.task.name),
            trainer.fresh_state() if kept else None,
            trainer.settings,
            torch.Generator().manual_seed(number),
        )
        for number, size in enumerate(sizes)
    ]


def copied(done: Any) -> list[Outcome]:
    """Those of every job by itself."""
    each = []
    for one in done:
        rows = one.values.clone().view(one.loss.numel(), -1)
        each += [
            Outcome(row, loss, one.error) for row, loss in zip(rows, one.loss.clone().view(-1), strict=True)
        ]
    return each


class Together(Stacked):
    """Counts how many trained in one step, and lets no failure pass for one that was made up for."""

    def __init__(self, trainer: LocalTrainer) -> None:
        super().__init__(trainer)
        self.widths: list[int] = []

    def train(self, group: list[Job]) -> tuple[Tensor, Tensor]:
        found = super().train(group)
        self.widths.append(len(group))
        return found


@pytest.mark.parametrize("augmentation", ["none", "affine-flip"])
@pytest.mark.parametrize(("network", "task"), [(classifier, "classification"), (segmenter, "segmentation")])
def test_a_step_is_that_of_one_after_the_other(
    network: Callable[[], nn.Module], task: str, augmentation: str
) -> None:
    """After one step of Adam the first moment is a tenth of the gradient."""
    trainer = of(network(), task, augmentation=augmentation, epochs=0.01, **ADAM)
    plain, beside = (jobs(trainer, [10, 10, 10, 9, 9], kept=True) for _ in range(2))
    together = Together(trainer)
    one, other = copied(Sequential(trainer).run(plain)), copied(together.run(beside))
    assert together.widths == [3, 2]
    for alone, stack, mine, yours in zip(one, other, plain, beside, strict=True):
        assert float(stack.loss) == pytest.approx(float(alone.loss), rel=1e-4)
        assert mine.state is not None
        assert yours.state is not None
        moment = mine.state["exp_avg"]
        assert float((moment - yours.state["exp_avg"]).norm()) < 1e-3 * float(moment.norm())
        assert float(yours.state["step"]) == 1


@pytest.mark.parametrize("kept", [False, True])
def test_many_steps_are_those_of_one_after_the_other(kept: bool) -> None:
    """SGD on a smooth network, whose way does not hang on the last bit; twice, so that states go on."""
    trainer = of(classifier(), "classification", epochs=2.5, **SGD)
    start = trainer.model.values.clone()
    plain, beside = (jobs(trainer, [10, 10, 9], kept) for _ in range(2))
    for _ in range(2):
        one, other = copied(Sequential(trainer).run(plain)), copied(Together(trainer).run(beside))
        for alone, stack, mine, yours in zip(one, other, plain, beside, strict=True):
            assert float((alone.values - stack.values).norm()) < 1e-2 * float((alone.values - start).norm())
            assert (mine.state is None) is not kept
            for name, tensor in (mine.state or {}).items():
                assert yours.state is not None
                assert float((tensor - yours.state[name]).norm()) < 1e-2 * float(tensor.norm())


@pytest.mark.parametrize("settings", [SGD, SGD | {"momentum": 0.0}, ADAM, ADAM | {"amsgrad": False}])
def test_a_step_of_many_is_a_step_of_each(settings: dict[str, Any]) -> None:
    """What `elementwise` says of an optimizer."""
    local, chance = LocalSettings.of(**settings), torch.Generator().manual_seed(0)
    assert local.elementwise
    values, gradients = torch.randn(2, 3, 50, generator=chance)
    every = {name: torch.rand(3, 50, generator=chance) for name in local.moments}
    counted = {"step": torch.tensor(4.0)} if local.counts_steps else {}
    rows = [
        (values[row].clone(), {name: one[row].clone() for name, one in every.items()}) for row in range(3)
    ]
    local.step(values, gradients, every | {name: one.clone() for name, one in counted.items()})
    for row, (own, state) in enumerate(rows):
        local.step(own, gradients[row], state | {name: one.clone() for name, one in counted.items()})
        torch.testing.assert_close(values[row], own)


@pytest.mark.parametrize("trainable", ["all", "norm+head"])
def test_a_recorded_step_is_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch, trainable: str) -> None:
    """With another θ, which neither the graph nor what it holds may remember."""
    trainer = of(freeze_all_but(segmenter(), trainable), "segmentation", augmentation="affine-flip", **ADAM)
    groups = [jobs(trainer, [10, 10, 9], kept=True) for _ in range(2)]
    quick, plain = Stacked(trainer), Stacked(trainer)
    list(quick.run(groups[0][:2]))
    monkeypatch.setattr(stacked, "recorded", lambda function, *_: function)
    list(plain.run(groups[1][:2]))
    own = [one.differentiated.values() for one in quick._lanes.values()]
    assert [[isinstance(one, partial) for one in each] for each in own] == [[False, False]]
    for theta in (0.9, 1.1):
        ended = []
        for executor, group in zip((quick, plain), groups, strict=True):
            start = trainer.model.values.clone().fill_(0.01).mul_(theta)
            ended.append(copied(executor.run([replace(job, start=start) for job in group])))
        for one, other in zip(*ended, strict=True):
            assert torch.equal(one.values, other.values)
            assert torch.equal(one.loss, other.loss)


def test_no_bit_depends_on_what_the_others_have() -> None:
    """What the guarantee for an intermediary and a hospital rests on: also with NaN and infinity beside."""
    trainer = of(classifier(), "classification", **ADAM)
    group = jobs(trainer, [8] * 5)
    before = copied(Stacked(trainer).run(group))
    for bad in (0.0, 1e30, math.nan, math.inf):
        images = torch.full_like(group[2].examples.images, bad)
        other = [*group]
        other[2] = replace(group[2], examples=replace(group[2].examples, images=images))
        after = copied(Stacked(trainer).run(other))
        for place in (0, 1, 3, 4):
            assert torch.equal(after[place].values, before[place].values)
            assert torch.equal(after[place].loss, before[place].loss)
        assert not torch.equal(after[2].values, before[2].values)


def test_no_bit_depends_on_how_far_the_others_optimizers_are() -> None:
    """One that was lost begins anew, with no step behind it; it trains as it would among its like."""
    trainer = of(classifier(), "classification", **ADAM)
    old, mixed, new, fresh = (jobs(trainer, [8] * 5, kept=True) for _ in range(4))
    for job in (*old, *mixed):
        list(Sequential(trainer).run([job]))
    mixed[2] = replace(new[2], start=mixed[0].start)
    ended = [copied(Together(trainer).run(group)) for group in (old, mixed, fresh)]
    for place in range(5):
        expected = ended[0] if place != 2 else ended[2]
        assert torch.equal(ended[1][place].values, expected[place].values)
        assert torch.equal(ended[1][place].loss, expected[place].loss)
    assert [float(job.state["step"]) for job in mixed if job.state] == [4, 4, 2, 4, 4]


def test_stacking_depends_on_public_sizes_alone() -> None:
    trainer = of(classifier(), "classification", **SGD)
    hidden = [replace(job, public_sizes=False) for job in jobs(trainer, [8, 8, 8])]
    together = Together(trainer)
    done = copied(together.run([*jobs(trainer, [8, 8]), *hidden]))
    assert together.widths == [2]
    alone = copied(Sequential(trainer).run(hidden))
    for one, other in zip(done[2:], alone, strict=True):
        assert torch.equal(one.values, other.values)


def test_groups_are_at_most_width_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "WIDTH", 4)
    trainer = of(classifier(), "classification", **SGD)
    together = Together(trainer)
    assert len(copied(together.run(iter(jobs(trainer, [8] * 11))))) == 11
    assert together.widths == [4, 4, 3]


def test_a_group_that_fails_trains_one_by_one() -> None:
    trainer = of(classifier(), "classification", **SGD)
    group = jobs(trainer, [8] * 3, kept=True)
    labels = group[1].examples.targets + 7  # no such class
    group[1] = replace(group[1], examples=replace(group[1].examples, targets=labels))
    done = copied(Stacked(trainer).run(group))
    assert [one.error is None for one in done] == [True, False, True]
    for place in (0, 2):
        assert torch.isfinite(done[place].values).all()


def test_frozen_parameters_stay_and_only_the_others_are_stacked() -> None:
    trainer = of(freeze_all_but(segmenter(), "norm+head"), "segmentation", **SGD)
    frozen = {name: p.clone() for name, p in trainer.model.module.named_parameters() if not p.requires_grad}
    group = jobs(trainer, [8] * 3)
    one, other = copied(Sequential(trainer).run(group)), copied(Together(trainer).run(group))
    for alone, stack in zip(one, other, strict=True):
        torch.testing.assert_close(stack.values, alone.values, rtol=1e-3, atol=1e-4)
    for name, parameter in trainer.model.module.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name])


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = classifier()

    def forward(self, images: Tensor) -> Tensor:
        if images.mean() > 100:
            raise ValueError("too bright")
        return self.inner(images)  # type: ignore[no-any-return]


class ByItsLength(LocalSettings):
    """A step that is not number by number: one of the whole gradient's direction."""

    optimizer: str = "by-its-length"

    def step(self, values: Tensor, gradients: Tensor, state: dict[str, Tensor]) -> None:
        values.sub_(gradients / gradients.norm())


def test_what_cannot_be_stacked_trains_one_after_the_other() -> None:
    some = examples(4, 0)
    cases = [
        of(LooksAtValues(), "classification", **SGD),
        of(nn.Sequential(nn.Dropout(0.5), classifier()), "classification", **SGD),
        LocalTrainer(FlatModel(classifier(), CPU), task_named("classification"), ByItsLength()),
        replace(of(classifier(), "classification", **SGD), sample_level=SampleLevel(1.0, 1.0)),
    ]
    for trainer in cases:
        start = trainer.model.values.clone()
        assert not can_stack(trainer, some)
        assert isinstance(executor_named("auto", trainer, some), Sequential)
        with pytest.raises(InputError, match=r"executor = stacked: .*set executor=auto"):
            executor_named("stacked", trainer, some)
        assert torch.equal(trainer.model.values, start)


def test_auto_chooses_an_executor() -> None:
    small, some = of(classifier(), "classification", **SGD), examples(4, 0)
    assert isinstance(executor_named("auto", small, some), Stacked)
    assert isinstance(executor_named("sequential", small, some), Sequential)
    large = of(segmenter(), "segmentation", **SGD)
    wide = Examples(torch.randn(2, 2, 128, 128), torch.zeros(2, 1, 128, 128))
    assert isinstance(executor_named("auto", large, wide), Sequential)
    assert isinstance(executor_named("stacked", large, wide), Stacked)
    with pytest.raises(InputError, match="executor = captured: it is for GPUs; set executor=auto"):
        executor_named("captured", small, some)
