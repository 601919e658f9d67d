"""Norm layers that keep nothing: no running statistics, so nothing leaves unclipped."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

NORMS: dict[str, Callable[[int, bool], nn.Module]] = {
    "batch": lambda channels, affine: nn.BatchNorm2d(channels, affine=affine, track_running_stats=False),
    "group": lambda channels, affine: nn.GroupNorm(math.gcd(8, channels), channels, affine=affine),
    "instance": lambda channels, affine: nn.InstanceNorm2d(
        channels, affine=affine, track_running_stats=False
    ),
}
KINDS = tuple(NORMS)


def norm_layer(kind: str, channels: int, affine: bool = False) -> nn.Module:
    """The paper's BatchNorm (no running statistics, by default no scale and shift), or group or instance."""
    if kind not in NORMS:
        raise ValueError(f"norm kind {kind!r} is not one of {KINDS}")
    return NORMS[kind](channels, affine)


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer normalises; its parameters, if it has any, are a scale and a shift."""
    return isinstance(
        layer,
        nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm | nn.LocalResponseNorm | nn.RMSNorm,
    )


def with_norm(model: nn.Module, kind: str = "batch", affine: bool = False) -> nn.Module:
    """Replaces the norm layers of `model`, in place, by ones that keep nothing (1D and 3D: "batch" only).

    This is the way out for a model that silodp refuses because its BatchNorm has buffers. With `affine` the
    new layers have a scale and a shift: those of the former ones, where these had any.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm3d) and kind == "batch":
                layer: nn.Module = type(child)(child.num_features, affine=affine, track_running_stats=False)
            elif isinstance(child, nn.BatchNorm2d | nn.InstanceNorm2d):
                layer = norm_layer(kind, child.num_features, affine)
            elif isinstance(child, nn.GroupNorm):
                layer = norm_layer(kind, child.num_channels, affine)
            else:
                continue
            with torch.no_grad():
                for own, former in zip(layer.parameters(), child.parameters(), strict=False):
                    own.copy_(former)
            setattr(parent, name, layer)
    return model
