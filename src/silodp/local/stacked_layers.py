"""Layers of W stacked networks as one call each, with the lanes folded into the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class ByChannels(TorchFunctionMode):
    """Folds lanes into channels, where `torch.vmap` itself would fold them into the batch.

    That would copy every image out of channels-last order, in which pooling on a CPU is twenty times as fast.
    """

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        layer, named = _LAYERS.get(getattr(function, "__name__", "")), named or {}
        if layer is not None and given[0].ndim == 4 and not named.get("return_indices"):
            return layer.apply(named, *given)
        return function(*given, **named)


class _Layer(torch.autograd.Function):
    """A layer with its own batching rule; autograd differentiates the batched call."""

    call: Any

    @classmethod
    def forward(cls, named: dict[str, Any], *given: Any) -> Any:
        return cls.call(*given, **named)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves nothing."""


class _Convolution(_Layer):
    """W convolutions as one with W times as many groups.

    The bias is added by itself: its gradient is then a plain sum, and oneDNN's takes as long as the weights'.
    """

    call = staticmethod(functional.conv2d)

    @staticmethod
    def vmap(info: Any, dims: Any, named: dict[str, Any], *given: Any) -> tuple[Tensor, int]:
        width, names = info.batch_size, ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        every = _joined(names, dims, named, given, {"input": 1, "weight": 0, "bias": 0}, width)
        every["groups"] = width * every.get("groups", 1)
        bias = every.pop("bias", None)
        found = functional.conv2d(**every)
        if bias is not None:
            found += bias.view(-1, 1, 1)
        return _apart(found, width), 1


class _GroupNorm(_Layer):
    """W group norms as one with W times as many groups."""

    call = staticmethod(functional.group_norm)

    @staticmethod
    def vmap(info: Any, dims: Any, named: dict[str, Any], *given: Any) -> tuple[Tensor, int]:
        width, names = info.batch_size, ("input", "num_groups", "weight", "bias", "eps")
        every = _joined(names, dims, named, given, {"input": 1, "weight": 0, "bias": 0}, width)
        every["num_groups"] *= width
        return _apart(functional.group_norm(**every), width), 1


class _Pooling(_Layer):
    """W poolings as one with W times as many channels."""

    call = staticmethod(functional.max_pool2d)

    @staticmethod
    def vmap(info: Any, dims: Any, named: dict[str, Any], images: Tensor, *rest: Any) -> tuple[Tensor, int]:
        pooled = functional.max_pool2d(_beside(images, dims[1], 1, info.batch_size), *rest, **named)
        return _apart(pooled, info.batch_size), 1


_LAYERS: dict[str, Any] = {"conv2d": _Convolution, "group_norm": _GroupNorm, "max_pool2d": _Pooling}


def _joined(
    names: Sequence[str],
    dims: Any,
    named: dict[str, Any],
    given: Sequence[Any],
    tensors: dict[str, int],
    width: int,
) -> dict[str, Any]:
    """All arguments of a layer by name, with the lanes of tensors folded into a dimension of each."""
    every = dict(zip(names, given, strict=False)) | named
    lanes = dict(zip(names, dims[1:], strict=False)) | dims[0]
    joined = {
        name: _beside(every[name], lanes[name], place, width)
        for name, place in tensors.items()
        if every.get(name) is not None
    }
    return every | joined


def _beside(tensor: Tensor, lanes: int | None, place: int, width: int) -> Tensor:
    """Folds the lanes' dimension into the one at `place`; a tensor shared by all lanes is repeated."""
    if lanes is None:
        return (
            tensor.unsqueeze(place)
            .expand(*tensor.shape[:place], width, *tensor.shape[place:])
            .flatten(place, place + 1)
        )
    return tensor.movedim(lanes, place).flatten(place, place + 1)


def _apart(images: Tensor, width: int) -> Tensor:
    """Views (n, W·c, h, w) as (n, W, c, h, w); the gradient comes back in channels-last order."""
    if images.requires_grad:
        images.register_hook(_channels_last)  # type: ignore[no-untyped-call]
    return images.view(len(images), width, -1, *images.shape[2:])


def _channels_last(gradient: Tensor) -> Tensor:
    """In another order than its images a gradient makes a pooling's backward pass seven times as slow."""
    return gradient.contiguous(memory_format=torch.channels_last)
