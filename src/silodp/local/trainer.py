"""Local training and evaluation on one resident model with flat buffers and data on the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from silodp.cohorts.cohort import Examples
from silodp.local.augmentation import move
from silodp.local.group_norm import GroupNormOnGpu
from silodp.local.jobs import Job
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.state import OptimizerState
from silodp.local.steps import batch_count
from silodp.settings import EvaluationBatch, EvaluationSettings
from silodp.tasks import Task

if TYPE_CHECKING:
    from silodp.local.sample_level import Fill, SampleLevel


def network_input(images: Tensor) -> Tensor:
    """Converts (n, c, h, w) images to channels-last float32: bytes to −1…1, other numbers unchanged."""
    scaled = images.float().div_(127.5).sub_(1) if images.dtype == torch.uint8 else images.float()
    return scaled.contiguous(memory_format=torch.channels_last)


def network_batch(images: Tensor, targets: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
    """Converts a batch to what the network and its loss take, augmented where there are `moves`.

    Args:
        images: (n, c, h, w).
        targets: (n, m, h, w) masks, which move with their images and are then float32; or (n,) classes.
        moves: (n, 4), see `draw_moves`.
    """
    images = network_input(images)
    if moves is None:
        return images, targets
    images, masks = move(images, targets.float() if targets.ndim == 4 else None, moves)
    return images, targets if masks is None else masks


@dataclass
class LocalTrainer:
    """Trains and evaluates on one device with one resident model.

    On a GPU it computes in bfloat16 where autocast allows; nothing waits for the device in a step. With
    `sample_level` each step is DP-SGD, in single precision. Memory: the model's vectors and one optimizer
    state, which every job overwrites.

    Attributes:
        model: the network and its flat vectors; they are where `device` says.
        task: its loss and metrics.
        settings: the local optimizer, and how long it runs on what batches.
        sample_level: DP-SGD in place of plain gradients.
        evaluation: what the network sees at a time when it predicts.
    """

    model: FlatModel
    task: Task
    settings: LocalSettings
    sample_level: SampleLevel | None = None
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        """Allocates the resident optimizer state, and hooks GroupNorm where it would crash PyTorch."""
        self.device = self.model.values.device
        self._mixes: bool | None = None
        for layer in self.model.module.modules():
            if isinstance(layer, nn.GroupNorm) and any(own.requires_grad for own in layer.parameters()):
                layer.register_forward_pre_hook(_contiguous_after_frozen_layers)
        self._working = self.fresh_state()

    def fresh_state(self) -> OptimizerState:
        """The optimizer's state before its first step."""
        state = {name: torch.zeros_like(self.model.values) for name in self.settings.moments}
        return state | ({"step": torch.zeros((), device=self.device)} if self.settings.counts_steps else {})

    def working_state(self) -> OptimizerState:
        """The trainer's resident state, set to zero, for jobs without kept state: nothing is allocated."""
        for tensor in self._working.values():
            tensor.zero_()
        return self._working

    def train(self, job: Job) -> Tensor:
        """Runs a job, changing its state in place; the result is left in `model.values`.

        What is drawn on the way, dropout and the noise of DP-SGD, follows from the job's seed alone.

        Returns:
            () mean loss, on the device.
        """
        self.begin(job)
        state = self.working_state() if job.state is None else job.state
        total = torch.zeros((), device=self.device)
        moves = job.moves or (None,) * len(job.batches)
        with self._gradients(job.seed) as fill:
            for batch, chance in zip(job.batches, moves, strict=True):
                total += self.step(job.examples[batch], chance, state, fill)
        return total / len(job.batches)

    def begin(self, job: Job) -> None:
        """Loads θ, and prepares the model for the first step."""
        self._seed_model(job.seed)
        self.model.load(job.start)
        if not self.model.module.training:
            self.model.module.train()

    def _seed_model(self, seed: int) -> None:
        """Seeds what the model itself draws, such as dropout, on this device alone.

        `torch.manual_seed` formats a stack trace for every kind of accelerator that is not in use, which
        takes a good part of a small network's step.
        """
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        torch.default_generator.manual_seed(seed)

    def _gradients(self, seed: int) -> AbstractContextManager[Fill]:
        """Yields what computes a step's gradient: backpropagation, or DP-SGD with noise from `seed`."""
        if self.sample_level is None:
            return nullcontext(self._fill)
        return self.sample_level.gradients(self.model, self.task.image_losses, seed)

    def step(
        self, batch: Examples, moves: Tensor | None, state: OptimizerState, fill: Fill | None = None
    ) -> Tensor:
        """Takes one local step on `batch`, changing `model.values`, `model.gradients` and `state` in place.

        It neither waits for the device nor allocates memory that outlives it, so it can be recorded.

        Args:
            batch: images and targets on the device.
            moves: (n, 4) augmentation of the images, see `draw_moves`; None without.
            state: of the optimizer.
            fill: computes the gradient into `model.gradients`; default: backpropagation.

        Returns:
            () loss before the step, on the device.
        """
        loss = (fill or self._fill)(*network_batch(batch.images, batch.targets, moves))
        self.settings.step(self.model.values, self.model.gradients, state)
        return loss

    def _fill(self, images: Tensor, targets: Tensor) -> Tensor:
        """Backpropagation into `model.gradients`, overwriting them; returns the () loss."""
        loss = self.task.loss(self.forward(images), targets)
        # Faster than `backward`, which zeroes the gradients and then adds to each.
        found = torch.autograd.grad(loss, self.model.trainable, materialize_grads=True)
        torch._foreach_copy_(self.model.gradient_views, found)
        return loss.detach()

    def forward(self, images: Tensor) -> Tensor:
        """Logits in single precision, computed in bfloat16 on a GPU where autocast allows."""
        if self.device.type != "cuda":
            return self.model.module(images).float()  # type: ignore[no-any-return]
        with torch.autocast("cuda", torch.bfloat16), GroupNormOnGpu():
            return self.model.module(images).float()  # type: ignore[no-any-return]

    @torch.no_grad()
    def logits(self, parameters: Tensor, examples: Examples, batch: EvaluationBatch | None = None) -> Tensor:
        """Predicts all examples, in their order.

        Where an image's prediction does not depend on its batch, batches are large; otherwise they are what
        `batch` says.

        Args:
            parameters: (d,) of the model.
            examples: images on the trainer's device.
            batch: what the network sees at a time; default: `evaluation.batch`.
        """
        self.model.load(parameters)
        self.model.module.eval()
        batch = batch or self.evaluation.batch
        if batch == "hospital" or not self.mixes_images(examples.images):
            count = batch_count(len(examples), max(32, self.settings.batch_size))
            return torch.cat([self._predict(part) for part in examples.images.tensor_split(count)])
        if batch == "image" or examples.patients is None:
            return torch.cat([self._predict(one) for one in torch.split(examples.images, 1)])
        scans = torch.unique(examples.patients, return_inverse=True)[1]
        order, sizes = scans.argsort(stable=True), scans.bincount().tolist()
        found = [self._predict(examples.images[one.to(self.device)]) for one in torch.split(order, sizes)]
        return torch.cat(found)[order.argsort().to(self.device)]

    def _predict(self, images: Tensor) -> Tensor:
        return self.forward(network_input(images))

    @torch.no_grad()
    def mixes_images(self, images: Tensor) -> bool:
        """Whether a prediction depends on the other images of its batch; determined once.

        By the network's norm layers, or by comparing the first image's prediction alone and beside the
        second; a single image tells nothing.
        """
        if self._mixes is None and normalises_over_batch(self.model.module):
            self._mixes = True
        if self._mixes is None and len(images) > 1:
            self.model.module.eval()
            alone, beside = self._predict(images[:1])[0], self._predict(images[:2])[0]
            rounding = 1e-3 if self.device.type == "cpu" else 5e-2  # of bfloat16
            self._mixes = bool((alone - beside).abs().max() > rounding * (1 + alone.abs().max()))
        return bool(self._mixes)


def normalises_over_batch(module: nn.Module) -> bool:
    """Whether it has BatchNorm layers, which here use the statistics of each batch."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def _contiguous_after_frozen_layers(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
    """Makes the input of a trained GroupNorm contiguous where it comes from frozen layers.

    With channels-last input there, PyTorch 2.13 crashes in the backward pass on a CPU.
    """
    (images,) = inputs
    if images.requires_grad or not torch.is_grad_enabled() or images.device.type != "cpu":
        return None
    return (images.contiguous(),)


def average_states(states: list[OptimizerState], count: int) -> list[OptimizerState]:
    """Returns `count` states, each the mean of `states`, as the authors do when v changes."""
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    return [{name: tensor.clone() for name, tensor in mean.items()} for _ in range(count)]
