"""Many small local trainings in one batched step over stacked parameters, on a CPU.

A small network's step is mostly overhead: a layer takes microseconds, and calling it takes as long again.
Here the weights of W intermediaries are stacked, and `torch.vmap` makes one call for all W; which calls these
are is recorded once.

Guarantee: an intermediary's result does not depend on the values of the others' images, parameters or states.
Which jobs are stacked follows from their number and sizes, only jobs of public size are stacked, and all of
one hospital: leaving out an intermediary or a hospital changes no bit of the others. The exception is a
group that raises, for want of memory or in the network: its jobs are trained one by one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import groupby, islice
from typing import Any

import torch
from torch import Tensor

from silodp.cohorts.cohort import Examples
from silodp.local.jobs import Job, Outcome, Sequential, draw_job
from silodp.local.parameters import shaped
from silodp.local.recorded import Function, recorded
from silodp.local.stacked_layers import ByChannels
from silodp.local.trainer import LocalTrainer, network_batch

WIDTH = 16
"""Intermediaries in one step. With more, activations fall out of the cache and it is slower."""


class Stacked:
    """Runs jobs of equal form in one step, and the others one after the other.

    Memory: parameters, gradients, moments and activations `WIDTH` times.
    """

    def __init__(self, trainer: LocalTrainer) -> None:
        _keep_freed_memory()
        self._trainer = trainer
        self._alone = Sequential(trainer)
        self._lanes: dict[int, _Lanes] = {}

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yields outcomes in the order of the jobs, (k, d) for k ≤ `WIDTH` that were stacked."""
        for form, alike in groupby(jobs, _form):
            while group := list(islice(alike, WIDTH)):
                if form is None or len(group) == 1:
                    yield from self._alone.run(group)
                else:
                    yield from self._together(group)

    def _together(self, group: list[Job]) -> Iterator[Outcome]:
        """Yields the one outcome of a group, or each job's own where the group fails.

        A group that fails has changed no state, so its jobs can be run again.
        """
        try:
            values, losses = self.train(group)
        except Exception:  # one of them failed, or memory was short: train each by itself
            yield from self._alone.run(group)
            return
        yield Outcome(values, losses)

    def train(self, group: list[Job]) -> tuple[Tensor, Tensor]:
        """Trains jobs of one form; changes their states in place when all are done.

        A job whose optimizer has taken another number of steps than the others' (it began anew) is trained
        with all of them as well, and its lane alone is kept: their bits are as if it had not.

        Returns:
            (W, d) float32 trained parameters, and (W,) mean losses.
        """
        ended = {steps: self._trained(group, steps) for steps in set(map(_steps_so_far, group))}
        values, losses, _ = ended[_steps_so_far(group[0])]
        for lane, job in enumerate(group):
            own_values, own_losses, states = ended[_steps_so_far(job)]
            if len(ended) > 1:
                values[lane], losses[lane] = own_values[lane], own_losses[lane]
            for name, state in states.items():
                assert job.state is not None, "of one form"
                job.state[name].copy_(state[lane])
        return values, losses

    def _trained(self, group: list[Job], steps_so_far: float) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """As `train`, with an optimizer of so many steps in every lane; returns states, and changes none."""
        trainer, first, width = self._trainer, group[0], len(group)
        if width not in self._lanes:
            self._lanes[width] = _Lanes(trainer, width)
        lanes = self._lanes[width]
        trainer.model.restore_frozen()
        if not trainer.model.module.training:
            trainer.model.module.train()
        lanes.spread(first.start, lanes.values)
        for name, stacked in lanes.state.items():
            if first.state is None:
                stacked.zero_()
            elif stacked.ndim:
                lanes.spread(torch.stack([job.state[name] for job in group if job.state]), stacked)
            else:
                stacked.fill_(steps_so_far)
        total = torch.zeros(width)
        for step in range(len(first.batches)):
            total += self._step(lanes, *_batch(group, step))
        states = {
            name: lanes.rows(stacked) if stacked.ndim else stacked.repeat(width)
            for name, stacked in lanes.state.items()
            if first.state is not None
        }
        return lanes.rows(lanes.values), total / len(first.batches), states

    def _step(self, lanes: _Lanes, images: Tensor, targets: Tensor) -> Tensor:
        """Takes one step in every lane, changing the lanes in place; returns the (W,) losses before it.

        The forward and backward pass are recorded when a batch of this form comes for the first time.
        """
        form = images.shape, targets.shape, targets.dtype
        if form not in lanes.differentiated:
            function = partial(self._differentiated, lanes)
            lanes.differentiated[form] = recorded(function, (images, targets), lanes.values)
        losses, *gradients = lanes.differentiated[form](images, targets)
        torch._foreach_copy_(lanes.gradient_views, gradients)
        self._trainer.settings.step(lanes.values, lanes.gradients, lanes.state)
        return losses

    def _differentiated(self, lanes: _Lanes, images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """(W,) losses, and the gradient of each stacked parameter, (W, …) each; leaves the lanes as they are.

        Args:
            lanes: whose parameters the network takes in place of its own.
            images: (W, n, c, h, w).
            targets: (W, n, …).
        """
        module, task = self._trainer.model.module, self._trainer.task

        def loss(parameters: dict[str, Tensor], images: Tensor, targets: Tensor) -> Tensor:
            return task.loss(torch.func.functional_call(module, parameters, (images,)).float(), targets)

        with ByChannels():
            losses = torch.vmap(loss)(lanes.parameters, images, targets)
        # Lanes share no parameter, so each gets the gradient of its own loss.
        own = list(lanes.parameters.values())
        return losses.detach(), *torch.autograd.grad(losses, own, lanes.ones, materialize_grads=True)


class _Lanes:
    """Resident memory of W trainings: parameters, gradients and optimizer state, (W·d,) each.

    The W copies of one parameter are adjacent, so that a layer's stacked weights need no copy.
    """

    def __init__(self, trainer: LocalTrainer, width: int) -> None:
        trainable = {name: p for name, p in trainer.model.module.named_parameters() if p.requires_grad}
        self._sizes = [p.numel() for p in trainable.values()]
        self._width = width
        self.values = torch.empty(width * len(trainer.model))
        self.gradients = torch.zeros_like(self.values)
        self.ones = torch.ones(width)
        self.differentiated: dict[tuple[Any, ...], Function] = {}  # by the form of a batch
        shapes = [p.shape for p in trainable.values()]
        own, self.gradient_views = (
            [shaped(part, shape).detach() for part, shape in zip(self._parts(flat), shapes, strict=True)]
            for flat in (self.values, self.gradients)
        )
        self.parameters = {name: one.requires_grad_() for name, one in zip(trainable, own, strict=True)}
        self.state = {
            name: torch.zeros_like(self.values) if one.ndim else torch.zeros_like(one)
            for name, one in trainer.fresh_state().items()
        }

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """(W, n) views, one for each parameter."""
        parts = torch.split(flat, [self._width * size for size in self._sizes])
        return [part.view(self._width, -1) for part in parts]

    def spread(self, vectors: Tensor, flat: Tensor) -> None:
        """Copies (d,), repeated for every lane, or (W, d) into (W·d,) memory."""
        for part, piece in zip(self._parts(flat), torch.split(vectors, self._sizes, dim=-1), strict=True):
            part.copy_(piece)

    def rows(self, flat: Tensor) -> Tensor:
        """Copies (W·d,) memory to (W, d)."""
        return torch.cat(self._parts(flat), dim=1)


def _form(job: Job) -> tuple[Any, ...] | None:
    """What jobs must have in common to be stacked; None where a job cannot be."""
    if not job.public_sizes:
        return None
    return id(job.start), job.state is None, tuple(map(len, job.batches)), bool(job.moves)


def _steps_so_far(job: Job) -> float:
    """The number of steps that a job's optimizer has taken."""
    return 0.0 if job.state is None else float(job.state.get("step", 0))


def _batch(group: list[Job], step: int) -> tuple[Tensor, Tensor]:
    """(W, n, c, h, w) images and (W, n, …) targets of one step.

    In memory the lanes' channels of a pixel are adjacent, the order in which the grouped convolution reads
    and writes them.
    """
    if all(job.examples is group[0].examples for job in group):
        every = [group[0].examples[torch.cat([job.batches[step] for job in group])]]
    else:
        every = [job.examples[job.batches[step]] for job in group]
    images, targets = torch.cat([one.images for one in every]), torch.cat([one.targets for one in every])
    moves = torch.cat([job.moves[step] for job in group]) if group[0].moves else None
    images, targets = network_batch(images, targets, moves)
    images = images.reshape(len(group), -1, *images.shape[1:]).permute(1, 3, 4, 0, 2).contiguous()
    return images.permute(3, 0, 4, 1, 2), targets.reshape(len(group), -1, *targets.shape[1:])


@cache
def _keep_freed_memory() -> None:
    """Tells glibc to keep freed memory instead of returning it to the system after every layer.

    A stacked step allocates and frees some megabytes a layer; page faults took a third of its time. Without
    glibc nothing happens.
    """
    if sys.platform == "linux" and (tune := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for parameter, size in _MALLOC.items():
            tune(parameter, size)


_MALLOC = {-1: 2**28, -2: 2**26, -3: 2**25}
"""M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc's mallopt, in bytes."""


def can_stack(trainer: LocalTrainer, examples: Examples) -> bool:
    """Whether this training can be stacked: tried on two small jobs, whose losses are compared.

    It cannot where layers draw random numbers or branch on values in Python, where the optimizer's step is
    not elementwise, or with DP-SGD.

    Args:
        trainer: whose model is used for the trial and restored afterwards.
        examples: some images, at least two.
    """
    if not trainer.settings.elementwise or trainer.sample_level is not None or trainer.device.type != "cpu":
        return False
    start = trainer.model.values.clone()
    rng = torch.Generator().manual_seed(0)
    group = [draw_job(start, examples, None, trainer.settings, rng, 1) for _ in range(2)]
    try:
        stacked = Stacked(trainer).train(group)[1]
        alone = torch.stack([trainer.train(job) for job in group])
    except Exception:  # PyTorch and users' networks each raise their own types
        return False
    finally:
        trainer.model.load(start)
    return bool(torch.allclose(stacked, alone, rtol=1e-3, atol=1e-5))
