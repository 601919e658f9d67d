"""GroupNorm on a GPU, in the precision and the memory order of the layers around it.

PyTorch's own turns channels-last images around twice, in single precision under autocast, and reduces a large
image with too few threads: a U-Net's step at 256² takes twice as long with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LARGE = 2**20
"""Numbers in a batch from which a few passes in order are faster than PyTorch's own kernels."""


class GroupNormOnGpu(TorchFunctionMode):
    """While it is entered, networks on a GPU compute `functional.group_norm` by `group_norm`."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if function is functional.group_norm and given[0].is_cuda:
            return group_norm(*given, **(named or {}))
        return function(*given, **(named or {}))


def group_norm(
    images: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """`functional.group_norm` in the dtype of `images`, with means and variances in single precision.

    Args:
        images: (n, c, h, w) or any other shape that PyTorch takes.
        groups: a divisor of c.
        weight: (c,), a scale.
        bias: (c,), a shift.
        eps: added to the variances.
    """
    with torch.autocast(images.device.type, enabled=False):
        in_order = images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last)
        if in_order and images.numel() >= LARGE:
            return InPasses.apply(images, groups, weight, bias, eps)  # type: ignore[no-any-return, no-untyped-call]
        weight, bias = (None if one is None else one.to(images.dtype) for one in (weight, bias))
        return functional.group_norm(images, groups, weight, bias, eps)


class InPasses(torch.autograd.Function):
    """GroupNorm as a few passes over channels-last images (n, c, h, w); arguments as of `group_norm`.

    An image's groups are a factor and a summand for each channel, forward and backward alike.
    """

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        """The images times a factor plus a summand; moments, (n, groups, 1), are kept for the way back."""
        exact = torch.promote_types(images.dtype, torch.float32)
        lengths = torch.linalg.vector_norm(images, dim=(2, 3), dtype=exact)
        sums = torch.stack([images.sum((2, 3), dtype=exact), lengths.square_()])
        count = images[0].numel() // groups
        mean, square = sums.view(2, len(images), groups, -1).sum(3, keepdim=True) / count
        inverse = (square - mean.square()).clamp_(min=0).add_(eps).rsqrt_()
        factor = inverse if weight is None else inverse * weight.view(groups, -1)
        summand = -mean * factor if bias is None else bias.view(groups, -1) - mean * factor
        ctx.save_for_backward(images, mean, inverse, weight)
        return torch.addcmul(_by_channel(summand, images), images, _by_channel(factor, images))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """With x̂ the normalised images and g the gradient times the scale, that of an image is
        (g − mean(g) − x̂·mean(g·x̂))/std, means over its group: a factor for g, one for the image, a summand.
        """
        images, mean, inverse, weight = ctx.saved_tensors
        for_images, _, for_weight, for_bias, _ = ctx.needs_input_grad
        shape = (2, len(images), mean.shape[1], -1)
        sums = [one.sum((2, 3), dtype=mean.dtype) for one in (gradient, gradient * images)]
        summed, product = torch.stack(sums).view(shape)  # of the gradient, and of its product with images
        product = (product - mean * summed) * inverse  # … with normalised images
        found: Tensor | None = None
        if for_images:
            scale = 1 if weight is None else weight.view(shape[2:])
            count = images[0].numel() // shape[2]
            along = -inverse.square() * (product * scale).sum(2, keepdim=True) / count
            rest = -inverse * (summed * scale).sum(2, keepdim=True) / count - along * mean
            found = torch.addcmul(_by_channel(rest, images), images, _by_channel(along, images))
            found.addcmul_(gradient, _by_channel(inverse * scale, images))
        return (
            found,
            None,
            product.sum(0).flatten() if for_weight else None,
            summed.sum(0).flatten() if for_bias else None,
            None,
        )


def _by_channel(numbers: Tensor, images: Tensor) -> Tensor:
    """(n, groups, 1 or channels of a group) as (n, c, 1, 1) in the dtype of `images` (n, c, h, w)."""
    n, groups, _ = numbers.shape
    channels = images.shape[1]
    return numbers.expand(n, groups, channels // groups).reshape(n, channels, 1, 1).to(images.dtype)
