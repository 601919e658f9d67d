"""Train-time augmentation as batched tensor operations on the training device."""

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
    """The paper's random affine (±10°, ±2 % shift) and horizontal flip, each image by itself.

    Masks move with their images, by nearest neighbour, and stay 0 or 1.
    """
    chance = torch.rand(len(images), 4, generator=generator, device=images.device) * 2 - 1
    angle = chance[:, 0] * ROTATION
    flip = torch.where(chance[:, 1] < 0, -1.0, 1.0)
    shift = chance[:, 2:] * 2 * SHIFT  # the grid spans 2
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
