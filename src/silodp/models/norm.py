"""Norm layers without running statistics, so that no buffer leaves a hospital unclipped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

NORMS = ("batch", "group", "instance")
MIXING_NORMS = ("batch",)
"""Norm layers whose output for an image depends on the others in its batch."""


def norm_layer(kind: str, channels: int, affine: bool = False) -> nn.Module:
    """A norm layer for 2D images without running statistics, and by default without scale and shift."""
    from torch import nn

    if kind == "batch":
        return nn.BatchNorm2d(channels, affine=affine, track_running_stats=False)
    if kind == "group":
        return nn.GroupNorm(math.gcd(8, channels), channels, affine=affine)
    if kind == "instance":
        return nn.InstanceNorm2d(channels, affine=affine, track_running_stats=False)
    raise ValueError(f"norm kind {kind!r} is not one of {NORMS}")


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer normalises; its parameters, if it has any, are a scale and a shift."""
    from torch import nn

    return isinstance(
        layer,
        nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm | nn.LocalResponseNorm | nn.RMSNorm,
    )


def with_norm(model: nn.Module, kind: str = "batch", affine: bool = False) -> nn.Module:
    """Replaces the norm layers of `model`, in place, by ones without buffers (1D and 3D: "batch" only).

    Use it for a model that silodp refuses because its BatchNorm has buffers. With `affine` the new layers
    have a scale and a shift, copied from the replaced layers if these had them.
    """
    import torch
    from torch import nn

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
