"""The networks of the paper, at any width."""

from __future__ import annotations

import torch
from torch import nn

from silodp.models.densenet import densenet
from silodp.models.norm import with_norm
from silodp.models.unet import UNet
from silodp.noise.streams import derive_seed
from silodp.settings import ModelSettings

__all__ = ["UNet", "build_model", "densenet", "with_norm"]


def build_model(settings: ModelSettings, channels: int, outputs: int, seed: int) -> nn.Module:
    """The network that `settings` describe, initialised from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "model"))
        if settings.kind == "unet":
            return UNet(channels, outputs, settings.features, settings.norm, settings.levels, settings.affine)
        return densenet(
            channels, outputs, settings.features, settings.growth, settings.blocks, settings.norm,
            settings.affine,
        )  # fmt: skip
