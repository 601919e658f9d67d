"""A model as one flat vector: what is trained, clipped, summed, noised and stepped is always this vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from silodp.errors import InputError


def refuse_unprotectable(model: nn.Module) -> None:
    """Only clipped and noised numbers may travel, so a model that carries anything else is refused."""
    for name, _ in model.named_buffers():
        raise InputError(
            f"model: buffer {name!r} would leave the hospital neither clipped nor noised; "
            "use norm layers without running statistics (silodp.with_norm(model, 'batch'))"
        )
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise InputError(
                f"model: parameter {name!r} is {parameter.dtype}; noise cannot protect whole numbers, "
                "keep it as a constant outside the parameters"
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("model: no trainable parameter; set requires_grad on what should be trained")


class FlatModel:
    """A model whose trainable parameters and gradients are views of two flat vectors.

    Copying a starting point in, taking a difference, a norm or an optimizer step are then single
    operations on one tensor. Convolution weights lie in channels-last order inside the vector.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        refuse_unprotectable(module)
        self.module = module.float().to(device)
        trainable = [p for p in module.parameters() if p.requires_grad]
        size = sum(p.numel() for p in trainable)
        self.values = torch.empty(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        offset = 0
        for parameter in trainable:
            part = slice(offset, offset + parameter.numel())
            view = _shaped(self.values[part], parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = _shaped(self.gradients[part], parameter.shape)
            offset = part.stop

    def __len__(self) -> int:
        return self.values.numel()

    def named_tensors(self, values: Tensor) -> dict[str, Tensor]:
        """`values` under the model's own parameter names and shapes, as files store them."""
        named = {}
        offset = 0
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                part = values[offset : offset + parameter.numel()]
                named[name] = _shaped(part, parameter.shape).contiguous().cpu()
                offset += parameter.numel()
            else:
                named[name] = parameter.detach().contiguous().cpu()
        return named


def _shaped(part: Tensor, shape: torch.Size) -> Tensor:
    """A view of a piece of the vector; 4D weights in channels-last order, which convolutions prefer."""
    if len(shape) != 4:
        return part.view(shape)
    out, channels, height, width = shape
    return part.view(out, height, width, channels).permute(0, 3, 1, 2)
