"""The networks of the paper, at any width."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from silodp.models.kinds import ModelSettings

__all__ = ["build_model"]


def build_model(settings: ModelSettings, channels: int, outputs: int, seed: int) -> nn.Module:
    """The network that `settings` describe, initialised from the seed alone."""
    import torch

    from silodp.noise.streams import derive_seed

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "model"))
        return settings.make(channels, outputs)
