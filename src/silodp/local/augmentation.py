"""Training-time augmentation as batched tensor operations on the training device."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

ROTATION = math.radians(10)
SHIFT = 0.02  # of the image's width


def affine_flip(
    images: Tensor, masks: Tensor | None, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """The paper's random affine (±10°, ±2 % shift) and horizontal flip, each image by itself."""
    return move(images, masks, draw_moves(len(images), generator))


def draw_moves(images: int, generator: torch.Generator) -> Tensor:
    """(images, 4) float32 in −1…1 on the generator's device: angle, flip, and both shifts of each image."""
    return torch.rand(images, 4, generator=generator, device=generator.device) * 2 - 1


def move(images: Tensor, masks: Tensor | None, moves: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rotates, flips and shifts images, and masks with them.

    Args:
        images: (n, c, h, w) float32.
        masks: (n, m, h, w) float32 or None; resampled by nearest neighbour, so they stay 0 or 1.
        moves: (n, 4) from `draw_moves`.
    """
    angle = moves[:, 0] * ROTATION
    flip = torch.where(moves[:, 1] < 0, -1.0, 1.0)
    shift = moves[:, 2:] * 2 * SHIFT  # the grid spans 2
    transform = torch.stack(
        [
            torch.stack([flip * angle.cos(), -angle.sin(), shift[:, 0]], dim=1),
            torch.stack([flip * angle.sin(), angle.cos(), shift[:, 1]], dim=1),
        ],
        dim=1,
    )
    grid = affine_grid(transform, list(images.shape), align_corners=False)
    moved = grid_sample(images, grid, padding_mode="border", align_corners=False)
    if masks is None:
        return moved, None
    return moved, grid_sample(masks, grid, mode="nearest", padding_mode="border", align_corners=False)
