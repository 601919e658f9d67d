"""Many small local trainings as one: a hospital's intermediaries side by side in one batched step.

A small network's step is mostly overhead: its layers take microseconds, and calling them takes as long again.
Here W intermediaries' weights of a layer lie together, and `torch.vmap` makes one call of W.

Guarantee: what an intermediary gets does not depend on the values of the others' images, parameters or
states. Which ones train together follows from their number and sizes, and only jobs whose sizes are public
are put together, all of one hospital: leaving out an intermediary or a hospital changes no bit of the others.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby, islice
from typing import Any

import torch
from torch import Tensor

from silodp.cohorts.cohort import Examples
from silodp.local.augmentation import move
from silodp.local.jobs import Job, Outcome, Sequential, draw_job
from silodp.local.parameters import shaped
from silodp.local.stacked_layers import ByChannels
from silodp.local.trainer import LocalTrainer, network_input

WIDTH = 16
"""Intermediaries in one step. More are slower: what a layer leaves for the next falls out of the cache."""


class Stacked:
    """Runs alike jobs together, the others one after the other; on a CPU.

    Memory: that of the model's parameters, gradients and moments, and of a step's activations, `WIDTH` times.
    """

    def __init__(self, trainer: LocalTrainer) -> None:
        _keep_freed_memory()
        self._trainer = trainer
        self._alone = Sequential(trainer)
        self._lanes: dict[int, _Lanes] = {}

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        for form, alike in groupby(jobs, _form):
            while group := list(islice(alike, WIDTH)):
                if form is None or len(group) == 1:
                    yield from self._alone.run(group)
                else:
                    yield from self._together(group)

    def _together(self, group: list[Job]) -> Iterator[Outcome]:
        try:
            values, losses = self.train(group)
        except Exception:  # of one of them, or of no memory for all: then each by itself
            yield from self._alone.run(group)
            return
        for trained, loss in zip(values, losses, strict=True):
            yield Outcome(trained, loss)

    def train(self, group: list[Job]) -> tuple[Tensor, Tensor]:
        """Trains jobs of one form, changing their states in place when all are done.

        Returns:
            (W, d) the trained parameters, and (W,) mean losses.
        """
        trainer, first, width = self._trainer, group[0], len(group)
        if width not in self._lanes:
            self._lanes[width] = _Lanes(trainer, width)
        lanes = self._lanes[width]
        trainer.model.load(first.start)  # the frozen parameters, too
        trainer.model.module.train()
        lanes.spread(first.start, lanes.values)
        for name, stacked in lanes.state.items():
            if first.state is None:
                stacked.zero_()
            elif stacked.ndim:
                lanes.spread(torch.stack([job.state[name] for job in group if job.state]), stacked)
            else:
                stacked.copy_(first.state[name])
        total = torch.zeros(width)
        for step in range(len(first.batches)):
            total += self._step(lanes, *_batch(group, step))
        for name, stacked in lanes.state.items() if first.state is not None else ():
            ended = lanes.rows(stacked) if stacked.ndim else stacked.expand(width)
            for job, one in zip(group, ended, strict=True):
                assert job.state is not None, "of one form"
                job.state[name].copy_(one)
        return lanes.rows(lanes.values), total / len(first.batches)

    def _step(self, lanes: _Lanes, images: Tensor, targets: Tensor) -> Tensor:
        lanes.gradients.zero_()
        module, task = self._trainer.model.module, self._trainer.task

        def loss(parameters: dict[str, Tensor], images: Tensor, targets: Tensor) -> Tensor:
            return task.loss(torch.func.functional_call(module, parameters, (images,)).float(), targets)

        with ByChannels():
            losses = torch.vmap(loss)(lanes.parameters, images, targets)
        losses.sum().backward()  # type: ignore[no-untyped-call]  # of lanes that share nothing
        self._trainer.settings.step(lanes.values, lanes.gradients, lanes.state)
        return losses.detach()


class _Lanes:
    """Resident memory for W trainings: parameters, gradients and the optimizer's state, (W·d,) each.

    One parameter's W values lie together, so that a layer has its W weights without a copy.
    """

    def __init__(self, trainer: LocalTrainer, width: int) -> None:
        trainable = {name: p for name, p in trainer.model.module.named_parameters() if p.requires_grad}
        self._sizes = [p.numel() for p in trainable.values()]
        self._width = width
        self.values = torch.empty(width * len(trainer.model))
        self.gradients = torch.zeros_like(self.values)
        self.parameters: dict[str, Tensor] = {}
        views = zip(self._parts(self.values), self._parts(self.gradients), strict=True)
        for (name, p), (value, gradient) in zip(trainable.items(), views, strict=True):
            self.parameters[name] = own = shaped(value, p.shape).detach().requires_grad_()
            own.grad = shaped(gradient, p.shape)
        self.state = {
            name: torch.zeros_like(self.values) if one.ndim else torch.zeros_like(one)
            for name, one in trainer.fresh_state().items()
        }

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """(W, n) views, one a parameter."""
        parts = torch.split(flat, [self._width * size for size in self._sizes])
        return [part.view(self._width, -1) for part in parts]

    def spread(self, vectors: Tensor, flat: Tensor) -> None:
        """Copies (d,) for every lane, or (W, d), into (W·d,) memory."""
        for part, piece in zip(self._parts(flat), torch.split(vectors, self._sizes, dim=-1), strict=True):
            part.copy_(piece)

    def rows(self, flat: Tensor) -> Tensor:
        """(W, d) from (W·d,) memory: a copy."""
        return torch.cat(self._parts(flat), dim=1)


def _form(job: Job) -> tuple[Any, ...] | None:
    """What jobs that train together have in common; None: this one trains by itself."""
    if not job.public_sizes:
        return None
    steps = None if job.state is None else float(job.state.get("step", 0))
    return id(job.start), steps, tuple(map(len, job.batches)), bool(job.moves)


def _batch(group: list[Job], step: int) -> tuple[Tensor, Tensor]:
    """(W, n, c, h, w) images and (W, n, …) targets of one step.

    In memory an image's channels lie beside those of the other lanes, and pixel comes after pixel: the order
    in which the convolution of all lanes takes and gives them.
    """
    every = [job.examples[job.batches[step]] for job in group]
    images = network_input(torch.cat([one.images for one in every]))
    targets = torch.cat([one.targets for one in every])
    if group[0].moves:
        masks = targets.float() if targets.ndim == 4 else None
        images, moved = move(images, masks, torch.cat([job.moves[step] for job in group]))
        targets = targets if moved is None else moved
    images = images.reshape(len(group), -1, *images.shape[1:]).permute(1, 3, 4, 0, 2).contiguous()
    return images.permute(3, 0, 4, 1, 2), targets.reshape(len(group), -1, *targets.shape[1:])


@cache
def _keep_freed_memory() -> None:
    """Asks the C library not to give memory back to the system after every layer.

    A stacked step takes and frees some megabytes a layer; getting them anew took a third of its time. Where
    there is no glibc, nothing happens.
    """
    if sys.platform == "linux" and (tune := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for parameter, size in _MALLOC.items():
            tune(parameter, size)


_MALLOC = {-1: 2**28, -2: 2**26, -3: 2**25}
"""M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc's mallopt, in bytes."""


def can_stack(trainer: LocalTrainer, examples: Examples) -> bool:
    """Whether this training can be stacked: found out on two small jobs, whose losses are compared.

    It cannot where layers draw by themselves (dropout) or look at values in Python, where the optimizer's
    step is not number by number, or with DP-SGD.

    Args:
        examples: some images, at least two; the model's values are not changed.
    """
    if not trainer.settings.elementwise or trainer.sample_level is not None or trainer.device.type != "cpu":
        return False
    start = trainer.model.values.clone()
    chance = torch.Generator().manual_seed(0)
    group = [draw_job(start, examples, None, trainer.settings, chance, 1) for _ in range(2)]
    try:
        stacked = Stacked(trainer).train(group)[1]
        alone = torch.stack([trainer.train(job) for job in group])
    except Exception:  # PyTorch and own networks each raise their own kinds
        return False
    finally:
        trainer.model.load(start)
    return bool(torch.allclose(stacked, alone, rtol=1e-3, atol=1e-5))
