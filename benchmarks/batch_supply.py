"""How much of a training step is spent on bringing its batch to the network.

Supply is everything before the network sees a batch: drawing the order, picking the intermediary's images and
the batch's from resident tensors, bytes to numbers, augmentation. The step is that and the forward pass, the
backward pass and the optimizer. Both are times of the same steps of `LocalTrainer`, so that a busy machine
slows them alike; the kinds of step take turns, and each share is the median over the turns.

U-Net 8 on 2,000 images of 96 x 96 bytes with one mask, CPU, one thread.

    python benchmarks/batch_supply.py [REPEATS | --smoke]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import Tensor

from silodp.cohorts import Examples
from silodp.local.jobs import draw_job
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.trainer import LocalTrainer
from silodp.models import build_model
from silodp.models.kinds import ModelSettings
from silodp.tasks import task_named

STEPS = 12


def cohort(count: int, size: int) -> Examples:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, size, size), generator=generator, dtype=torch.uint8)
    masks = torch.zeros(count, 1, size, size, dtype=torch.uint8)
    masks[:, :, size // 4 : size // 2, size // 4 : size // 2] = 1
    return Examples(images, masks)


def some_steps(trainer: LocalTrainer, examples: Examples) -> tuple[float, float]:
    """Milliseconds of a step that go to supply, and of the whole step: means over `STEPS` of them."""
    generator, settings = torch.Generator().manual_seed(0), trainer.settings
    state = trainer.working_state()
    started = time.perf_counter()
    part = examples[torch.randperm(len(examples), generator=generator)]  # as a hospital does
    job = draw_job(trainer.model.values, part, {}, settings, generator)
    once = (time.perf_counter() - started) / len(job.batches)  # an epoch's, for one of its steps
    supplied, taken, moment = 0.0, 0.0, 0.0

    def fill(images: Tensor, targets: Tensor) -> Tensor:
        nonlocal moment
        moment = time.perf_counter()  # here the network begins
        return trainer._fill(images, targets)

    moves = job.moves or (None,) * len(job.batches)
    for indices, chance in list(zip(job.batches, moves, strict=True))[:STEPS]:
        started = time.perf_counter()
        trainer.step(part[indices], chance, state, fill)
        supplied += moment - started
        taken += time.perf_counter() - started
    return 1e3 * (once + supplied / STEPS), 1e3 * (once + taken / STEPS)


def main(words: list[str]) -> None:
    smoke = "--smoke" in words
    count, size, repeats = (200, 16, 1) if smoke else (2000, 96, int(words[0]) if words else 15)
    torch.set_num_threads(1)
    examples, task = cohort(count, size), task_named("segmentation")
    model = FlatModel(build_model(ModelSettings.of(features=8), 1, 1, 0), torch.device("cpu"))
    model.module.train()
    trainers = [
        LocalTrainer(model, task, LocalSettings.of(batch_size=batch_size, augmentation=augmentation))
        for batch_size in (8, 16)
        for augmentation in ("none", "affine-flip")
    ]
    turns: list[list[tuple[float, float]]] = [[] for _ in trainers]
    for turn in range(repeats + 1):
        for trainer, results in zip(trainers, turns, strict=True):
            result = some_steps(trainer, examples)
            if turn:  # the first warms up
                results.append(result)
    print(f"U-Net 8, {count} images of {size} x {size} bytes, one thread, {repeats} turns of {STEPS} steps")
    for trainer, results in zip(trainers, turns, strict=True):
        shares = sorted(supply / step for supply, step in results)
        supply, step = (statistics.median(times) for times in zip(*results, strict=True))
        print(
            f"batch {trainer.settings.batch_size:2}, augmentation {trainer.settings.augmentation:11}: "
            f"supply {statistics.median(shares):6.2%} of a step (from {shares[0]:.2%} to {shares[-1]:.2%}); "
            f"{supply:.2f} of {step:.1f} ms"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
