"""Norm layers that keep nothing: no running statistics, no parameters, so nothing leaves unclipped."""

from __future__ import annotations

import math

from torch import nn

KINDS = ("batch", "group", "instance")


def norm_layer(kind: str, channels: int) -> nn.Module:
    """The paper's BatchNorm (no affine, no running statistics), or group or instance norm."""
    if kind == "batch":
        return nn.BatchNorm2d(channels, affine=False, track_running_stats=False)
    if kind == "group":
        return nn.GroupNorm(math.gcd(8, channels), channels, affine=False)
    if kind == "instance":
        return nn.InstanceNorm2d(channels, affine=False, track_running_stats=False)
    raise ValueError(f"norm kind {kind!r} is not one of {KINDS}")


def with_norm(model: nn.Module, kind: str = "batch") -> nn.Module:
    """Replaces the norm layers of `model`, in place, by ones that keep nothing (1D and 3D: "batch" only).

    This is the way out for a model that silodp refuses because its BatchNorm has buffers.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm3d) and kind == "batch":
                plain = type(child)(child.num_features, affine=False, track_running_stats=False)
                setattr(parent, name, plain)
            elif isinstance(child, nn.BatchNorm2d | nn.InstanceNorm2d):
                setattr(parent, name, norm_layer(kind, child.num_features))
            elif isinstance(child, nn.GroupNorm):
                setattr(parent, name, norm_layer(kind, child.num_channels))
    return model
