"""A network that is easy to invert, on which an attack must succeed if it works at all.

Dense layers keep positions apart and smooth activations keep the matching smooth, so gradient inversion is
known to succeed on such networks (Zhu et al. 2019). U-Net and DenseNet of an experiment are far harder to
invert; a failure there says little about privacy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

WIDTH, HIDDEN = 8, 64


class OpenNetwork(nn.Module):
    """Two convolutions and two dense layers; masks come out at a quarter of the size and are enlarged."""

    def __init__(self, channels: int, size: tuple[int, int], outputs: int, masks: bool) -> None:
        super().__init__()
        self.size, self.outputs, self.masks = size, outputs, masks
        self.coarse = tuple(math.ceil(side / 4) for side in size)
        cells = math.prod(self.coarse)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, WIDTH, 5, stride=2, padding=2), nn.Softplus(),
            nn.Conv2d(WIDTH, WIDTH, 5, stride=2, padding=2), nn.Softplus(), nn.Flatten(),
            nn.Linear(WIDTH * cells, HIDDEN), nn.Softplus(),
            nn.Linear(HIDDEN, outputs * (cells if masks else 1)),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers(images)
        if not self.masks:
            return out
        coarse = out.view(len(images), self.outputs, *self.coarse)
        return interpolate(coarse, size=self.size, mode="bilinear")


def open_network(channels: int, size: tuple[int, int], outputs: int, masks: bool, seed: int) -> OpenNetwork:
    """The same weights for the same seed, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OpenNetwork(channels, size, outputs, masks)
