"""Local training as jobs: all randomness is drawn beforehand, so that a job can be batched or repeated."""

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
        examples: images, on the trainer's device; those to train on are among them.
        batches: int64 indices into `examples`, one tensor a step.
        moves: (n, 4) float32 augmentation of each step's n images, see `draw_moves`; empty without.
        state: of the optimizer; changed in place. None: a fresh one, which is not kept.
        seed: of what is drawn while training: dropout, and the noise of DP-SGD.
        public_sizes: whether the number of images follows from public facts.
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
    """The result of a job, or of k jobs of as many steps that were trained together.

    Attributes:
        values: (d,) or (k, d) float32, the trained parameters, in memory that the next outcome overwrites.
        loss: () or (k,) mean over the steps, on the device; NaN where training failed.
        error: what the network raised on a single job, which then counts as zero.
    """

    values: Tensor
    loss: Tensor
    error: Exception | None = None


class Executor(Protocol):
    """Runs training jobs, one after the other or together."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yields outcomes in the order of the jobs, which are consumed lazily."""
        ...


@dataclass(frozen=True)
class Sequential:
    """Runs one job after the other on one resident model: memory does not grow with the number of jobs."""

    trainer: LocalTrainer

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yields outcomes, all in `trainer.model.values`; a job that raises has NaN there, and its error."""
        for job in jobs:
            values = self.trainer.model.values
            try:
                loss, error = self.trainer.train(job), None
            except Exception as failed:
                # A user's network may raise on an image: that counts like NaN, for this job alone.
                loss, error = torch.full((), math.nan, device=values.device), failed
                values.fill_(math.nan)
            yield Outcome(values, loss, error)


def draw_job(
    start: Tensor,
    examples: Examples,
    state: OptimizerState | None,
    settings: LocalSettings,
    rng: torch.Generator,
    steps: int | None = None,
    public_sizes: bool = True,
    places: Tensor | None = None,
) -> Job:
    """Draws the batches and augmentation of a job; every image is used once an epoch.

    Args:
        start: (d,) θ.
        examples: images on one device.
        state: of the optimizer, see `Job`.
        settings: of local training.
        rng: on the device of the examples.
        steps: number of steps; default: `local.epochs` over these examples.
        public_sizes: see `Job`.
        places: int64 indices of the examples to train on; default: all.
    """
    size = len(examples) if places is None else len(places)
    count = batch_count(size, settings.batch_size)
    steps = planned_steps(size, settings) if steps is None else steps
    batches: list[Tensor] = []
    while len(batches) < steps:
        order = torch.randperm(size, generator=rng, device=rng.device)
        batches += (order if places is None else places[order]).tensor_split(count)
    del batches[steps:]
    moves: tuple[Tensor, ...] = ()
    if settings.augmentation == "affine-flip":
        sizes = [len(batch) for batch in batches]
        moves = tuple(torch.split(draw_moves(sum(sizes), rng), sizes))
    return Job(start, examples, tuple(batches), moves, state, rng.initial_seed(), public_sizes)
