"""Norm layers without running statistics, so that no buffer leaves a hospital unclipped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Norm:
    """One kind of norm layer.

    Attributes:
        layer: a layer for 2D images from (channels, affine: whether it has a scale and a shift).
        mixes_images: whether what it does to an image depends on the others of the batch.
    """

    layer: Callable[[int, bool], nn.Module]
    mixes_images: bool = False


def _batch(channels: int, affine: bool) -> nn.Module:
    from torch import nn

    return nn.BatchNorm2d(channels, affine=affine, track_running_stats=False)


def _group(channels: int, affine: bool) -> nn.Module:
    from torch import nn

    return nn.GroupNorm(math.gcd(8, channels), channels, affine=affine)


def _instance(channels: int, affine: bool) -> nn.Module:
    from torch import nn

    return nn.InstanceNorm2d(channels, affine=affine, track_running_stats=False)


NORMS = {"batch": Norm(_batch, mixes_images=True), "group": Norm(_group), "instance": Norm(_instance)}
"""By name, as in `model.norm`; one that is added here can be named there."""


def norm_layer(kind: str, channels: int, affine: bool = False) -> nn.Module:
    """A norm layer of `NORMS` for 2D images, by default without scale and shift."""
    if kind not in NORMS:
        raise ValueError(f"norm kind {kind!r} is not one of {tuple(NORMS)}")
    return NORMS[kind].layer(channels, affine)


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
