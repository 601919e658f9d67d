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
    """The paper's random affine (±10°, ±2 % shift) and horizontal flip, each image by itself."""
    return move(images, masks, draw_moves(len(images), generator))


def draw_moves(images: int, generator: torch.Generator) -> Tensor:
    """(images, 4) in −1…1, on the generator's device: angle, flip, and both shifts of each image."""
    return torch.rand(images, 4, generator=generator, device=generator.device) * 2 - 1


def move(images: Tensor, masks: Tensor | None, chance: Tensor) -> tuple[Tensor, Tensor | None]:
    """Images turned, flipped and shifted as `chance` says, which `draw_moves` gives.

    Masks move with their images, by nearest neighbour, and stay 0 or 1.
    """
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
