"""Layers of W stacked networks as one call each, with the lanes folded into the channels.

`torch.vmap` maps a network over W lanes, each with a batch (n, c, h, w) and weights of its own. As images
(n, W·c, h, w), a convolution, GroupNorm or pooling of all lanes is PyTorch's own on W times as many groups or
channels. Only calls that a rule `takes` come here; `torch.vmap` has its own way for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
        if layer is not None and layer.takes(named, *given):
            return layer.apply(named, *given)
        return function(*given, **named)


class _Layer(torch.autograd.Function):
    """A layer with its own batching rule; autograd differentiates the batched call.

    A subclass's `vmap` gets W as `info.batch_size`; as `dims` each argument's dimension of lanes, None where
    it has none; and the arguments, those by name as a dict. It returns the result and its dimension of lanes.

    Attributes:
        call: PyTorch's function, for a call outside of vmap.
    """

    call: Any

    @staticmethod
    def takes(named: dict[str, Any], images: Tensor, *rest: Any) -> bool:
        """Whether the rule is for a call with these arguments."""
        return images.ndim == 4 and not named.get("return_indices")

    @classmethod
    def forward(cls, named: dict[str, Any], *given: Any) -> Any:
        return cls.call(*given, **named)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves nothing."""


class _Convolution(_Layer):
    """W convolutions as one with W times as many groups."""

    call = staticmethod(functional.conv2d)

    @staticmethod
    def vmap(info: Any, dims: Any, named: dict[str, Any], *given: Any) -> tuple[Tensor, int]:
        width, names = info.batch_size, ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        every = _joined(names, dims, named, given, {"input": 1, "weight": 0, "bias": 0}, width)
        every["groups"] = width * every.get("groups", 1)
        bias = every.pop("bias", None)
        if bias is None:
            return _apart(functional.conv2d(**every), width), 1
        found = functional.conv2d(**every, bias=bias.detach())
        return _apart(_Bias.apply(found, bias), width), 1  # type: ignore[no-untyped-call]


class _Bias(torch.autograd.Function):
    """The gradient of a bias that is added already: a plain sum; oneDNN's takes as long as the weights'."""

    @staticmethod
    def forward(images: Tensor, bias: Tensor) -> Tensor:
        """The images (n, W·c, h, w) as they are."""
        return images.view_as(images)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The images' gradient as it is, and the bias' (W·c,)."""
        return gradient, gradient.sum((0, 2, 3))


class _Linear(_Layer):
    """W linear layers as one product."""

    call = staticmethod(functional.linear)

    @staticmethod
    def takes(named: dict[str, Any], rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
        """Plain (n, i) rows with a bias, as a classifier's head has."""
        return rows.ndim == 2 and bias is not None and not named

    @staticmethod
    def vmap(info: Any, dims: Any, named: dict[str, Any], *given: Tensor) -> tuple[Tensor, int]:
        rows, weights, biases = map(partial(_in_front, info.batch_size), given, dims[1:])
        return _Products.apply(rows, weights, biases), 0  # type: ignore[no-untyped-call]


class _Products(torch.autograd.Function):
    """(W, n, i) times (W, o, i) plus (W, o); the weights' gradient comes in the weights' own order."""

    @staticmethod
    def forward(rows: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        return torch.baddbmm(biases[:, None], rows, weights.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weights = ctx.saved_tensors
        for_rows, for_weights, for_biases = ctx.needs_input_grad
        return (
            gradient.bmm(weights) if for_rows else None,
            gradient.mT.bmm(rows) if for_weights else None,
            gradient.sum(1) if for_biases else None,
        )


class _CrossEntropy(_Layer):
    """W means as those of one loss for every row, where `torch.vmap` makes two dozen calls."""

    call = staticmethod(functional.cross_entropy)

    @staticmethod
    def takes(named: dict[str, Any], logits: Tensor, labels: Tensor, *rest: Any) -> bool:
        """(n, classes) logits with (n,) labels, and no argument that changes what the loss is."""
        usual = all(value == _CROSS_ENTROPY.get(name) for name, value in named.items())
        return logits.ndim == 2 and labels.ndim == 1 and usual and not rest

    @staticmethod
    def vmap(info: Any, dims: Any, named: dict[str, Any], *given: Tensor) -> tuple[Tensor, int]:
        logits, labels = map(partial(_in_front, info.batch_size), given, dims[1:])
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return losses.view(labels.shape).sum(1) / labels.ne(_IGNORED).sum(1), 0


_IGNORED = -100
_CROSS_ENTROPY = {"ignore_index": _IGNORED, "reduction": "mean", "label_smoothing": 0.0}
"""The usual values of arguments that are not None; rows with the label `_IGNORED` do not count."""


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


_LAYERS: dict[str, Any] = {
    "conv2d": _Convolution,
    "group_norm": _GroupNorm,
    "max_pool2d": _Pooling,
    "linear": _Linear,
    "cross_entropy": _CrossEntropy,
}


def _joined(
    names: Sequence[str],
    dims: Any,
    named: dict[str, Any],
    given: Sequence[Any],
    tensors: dict[str, int],
    width: int,
) -> dict[str, Any]:
    """All arguments of a layer by name, with the lanes of tensors folded into a dimension of each.

    Args:
        names: of the positional arguments.
        dims: of the lanes: those of the arguments by name as a dict, then the positional ones'.
        named: arguments by name.
        given: positional arguments; the last of `names` may be missing.
        tensors: into which dimension to fold, by the name of an argument; one that is None stays away.
        width: W.
    """
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


def _in_front(width: int, tensor: Tensor, lanes: int | None) -> Tensor:
    """The tensor with the lanes as its first dimension; a view."""
    return tensor.expand(width, *tensor.shape) if lanes is None else tensor.movedim(lanes, 0)


def _apart(images: Tensor, width: int) -> Tensor:
    """Views (n, W·c, h, w) as (n, W, c, h, w); the gradient comes back in channels-last order."""
    found = images.view(len(images), width, -1, *images.shape[2:])
    if found.requires_grad:
        found.register_hook(_channels_last)  # type: ignore[no-untyped-call]
    return found


def _channels_last(gradient: Tensor) -> Tensor:
    """In another order than its images a gradient makes a pooling's backward pass seven times as slow."""
    return gradient.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)
