"""The search of both attacks: Adam with a decaying step, pixels clamped to −1…1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

OnStep = Callable[[], None]


def descend(
    images: Tensor,
    cost: Callable[[], Tensor],
    iterations: int,
    learning_rate: float,
    on_step: OnStep,
    also: Sequence[Tensor] = (),
) -> None:
    """Lowers `cost()` by changing `images` and `also` in place; all of them require gradients.

    Args:
        images: (n, channels, height, width), between −1 and 1 after every step.
        cost: of these tensors; called once a step.
        iterations: steps of Adam, on a cosine schedule down to nothing.
        learning_rate: of the first step.
        on_step: called after every step.
        also: further tensors to optimise, without limits.
    """
    free = [images, *also]
    optimizer = torch.optim.Adam(free, learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    for _ in range(iterations):
        for tensor, gradient in zip(free, torch.autograd.grad(cost(), free), strict=True):
            tensor.grad = gradient
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(-1, 1)
        on_step()


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    across = (images[..., :, 1:] - images[..., :, :-1]).abs().mean()
    return down + across
