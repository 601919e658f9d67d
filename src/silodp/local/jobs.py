"""Local training as jobs: all chance is drawn before, so that a loop may be batched, captured or repeated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from silodp.cohorts.cohort import Examples
from silodp.local.augmentation import draw_moves
from silodp.local.optimizers import LocalSettings
from silodp.local.state import OptimizerState
from silodp.local.steps import batch_count, planned_steps

if TYPE_CHECKING:
    from silodp.local.trainer import LocalTrainer


@dataclass(frozen=True)
class Job:
    """One intermediary's training in one round.

    Attributes:
        start: (d,) θ, on the trainer's device; not changed.
        examples: images to train on, on the trainer's device.
        batches: the places of each step's images in `examples`.
        moves: (n, 4) how each step's n images are augmented, see `draw_moves`; empty without augmentation.
        state: of the optimizer; changed in place. None: a fresh one, which nobody keeps.
        seed: of the network's own chance, such as dropout, and of DP-SGD's noise: what no one draws before.
        public_sizes: whether how many images there are follows from what is public.
    """

    start: Tensor
    examples: Examples
    batches: tuple[Tensor, ...]
    moves: tuple[Tensor, ...]
    state: OptimizerState | None
    seed: int
    public_sizes: bool = True


@dataclass(frozen=True)
class Outcome:
    """A job done.

    Attributes:
        values: (d,) the trained parameters, in memory that the next job will use.
        loss: the mean over the steps, still on the device; NaN where it failed.
        error: what the network raised, for whom this job counts as nothing.
    """

    values: Tensor
    loss: Tensor
    error: Exception | None = None


class Executor(Protocol):
    """Runs jobs, of one hospital or of many, one after the other or together."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """The outcomes in the order of the jobs, which may be taken one by one."""
        ...


@dataclass(frozen=True)
class Sequential:
    """One job after the other on one resident model: memory does not grow with the jobs."""

    trainer: LocalTrainer

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        for job in jobs:
            values = self.trainer.model.values
            try:
                loss, error = self.trainer.train(job), None
            except Exception as failed:
                # A user's own network may refuse an image: that counts like NaN, for this job alone.
                loss, error = torch.full((), math.nan, device=values.device), failed
                values.fill_(math.nan)
            yield Outcome(values, loss, error)


def draw_job(
    start: Tensor,
    examples: Examples,
    state: OptimizerState | None,
    settings: LocalSettings,
    chance: torch.Generator,
    steps: int | None = None,
    public_sizes: bool = True,
) -> Job:
    """A job with its batches and augmentation, every image once an epoch.

    Args:
        chance: on the device of the examples.
        steps: how many; default: as `local.epochs` over these examples.
        public_sizes: as `Job` has it.
    """
    count = batch_count(len(examples), settings.batch_size)
    steps = planned_steps(len(examples), settings) if steps is None else steps
    batches: list[Tensor] = []
    while len(batches) < steps:
        order = torch.randperm(len(examples), generator=chance, device=chance.device)
        batches += order.tensor_split(count)
    del batches[steps:]
    moves: tuple[Tensor, ...] = ()
    if settings.augmentation == "affine-flip":
        sizes = [len(batch) for batch in batches]
        moves = tuple(torch.split(draw_moves(sum(sizes), chance), sizes))
    return Job(start, examples, tuple(batches), moves, state, chance.initial_seed(), public_sizes)
