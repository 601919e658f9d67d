"""A model as one flat vector, which is what is trained, clipped, summed, noised and stepped."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from silodp.errors import InputError


def refuse_unprotectable(model: nn.Module) -> None:
    """Refuses a model with buffers or integer parameters, which would travel neither clipped nor noised."""
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
    """A model whose trainable parameters (`trainable`) and gradients are views of two flat vectors.

    Loading parameters, taking a difference, a norm or an optimizer step are then single operations on one
    tensor. Convolution weights are stored channels-last in the vector.

    Guarantee: frozen parameters (`requires_grad = False`) never change. Every `load` restores them and
    `named_tensors` writes their initial values, whatever a forward pass did to them.

    Attributes:
        module: the network, float32 on `device`; its parameters are views of `values`.
        values: (d,) float32, the trainable parameters.
        gradients: (d,) float32; the parameters' `grad` are views of it.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        """Takes over a module, in place: its parameters are moved into vectors on `device`.

        Raises:
            InputError: it has buffers, integer parameters, or nothing to train.
        """
        refuse_unprotectable(module)
        self.module = module.float().to(device)
        self.trainable = [p for p in module.parameters() if p.requires_grad]
        self.values = _flattened(self.trainable, device)
        self.gradients = torch.zeros_like(self.values)
        self.gradient_views = list(_pieces(self.gradients, self.trainable))
        for parameter, gradient in zip(self.trainable, self.gradient_views, strict=True):
            parameter.grad = gradient
        self._frozen_parameters = [p for p in module.parameters() if not p.requires_grad]
        self._frozen = _flattened(self._frozen_parameters, device)
        self._frozen_start = self._frozen.clone()

    def __len__(self) -> int:
        return self.values.numel()

    @cached_property
    def identity(self) -> str:
        """SHA-256 of the parameters' names and shapes and of the frozen values: what the vector means."""
        named = [(name, tuple(p.shape), p.requires_grad) for name, p in self.module.named_parameters()]
        hashed = hashlib.sha256(repr(named).encode())
        hashed.update(self._frozen_start.cpu().numpy().tobytes())
        return hashed.hexdigest()

    def load(self, values: Tensor) -> None:
        """Copies (d,) `values` into the model, and restores the frozen parameters."""
        self.values.copy_(values)
        self.restore_frozen()

    def restore_frozen(self) -> None:
        """Gives the frozen parameters their initial values again, in place."""
        self._frozen.copy_(self._frozen_start)

    def named_tensors(self, values: Tensor) -> dict[str, Tensor]:
        """(d,) `values` as named tensors of the model's shapes, for files: copies, on the CPU."""
        trained, frozen = (
            _pieces(values, self.trainable),
            _pieces(self._frozen_start, self._frozen_parameters),
        )
        return {
            name: next(trained if parameter.requires_grad else frozen).contiguous().cpu().clone()
            for name, parameter in self.module.named_parameters()
        }


def _flattened(parameters: Sequence[nn.Parameter], device: torch.device) -> Tensor:
    """Moves the parameters into one vector; they become views of it."""
    values = torch.empty(sum(p.numel() for p in parameters), device=device)
    for parameter, view in zip(parameters, _pieces(values, parameters), strict=True):
        view.copy_(parameter.detach())
        parameter.data = view
    return values


def _pieces(values: Tensor, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    """Yields views of a flat vector in the shapes of the parameters."""
    parts = torch.split(values, [p.numel() for p in parameters])
    return (shaped(part, p.shape) for part, p in zip(parts, parameters, strict=True))


class Snapshot:
    """A copy of everything a model holds, parameters and attributes of its layers, to detect changes."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = _held(module)

    def changed(self) -> str | None:
        """The name of a value that has changed, such as "down.0.running_mean"; None where none has.

        Tensors, arrays, numbers and collections of them are compared by value, other objects by identity.
        """
        after = _held(self._module)
        names = (
            name for name in {**self._before, **after} if not _same(self._before.get(name), after.get(name))
        )
        return next(names, None)


def _held(module: nn.Module) -> dict[str, Any]:
    """Copies of a module's parameters and of its layers' own attributes, by name."""
    held: dict[str, Any] = {name: p.detach().clone() for name, p in module.named_parameters()}
    for place, layer in module.named_modules():
        for name, value in vars(layer).items():
            if name not in _OF_PYTORCH:
                held[f"{place}.{name}".lstrip(".")] = _copied(value)
    return held


_OF_PYTORCH = frozenset(vars(nn.Module()))
"""Attributes that PyTorch itself keeps in a layer: hooks, parameter and module tables, `training`."""


def _copied(value: Any) -> Any:
    """Copies tensors, arrays and collections of them; returns anything else unchanged."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_copied(one) for one in value]
    return value


def _same(before: Any, after: Any) -> bool:
    """Whether a copy from `_copied` still has the values of what was copied; NaN equals NaN."""
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return before.shape == after.shape and bool(
            ((before == after) | (before.isnan() & after.isnan())).all()
        )
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        return np.array_equal(before, after)
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_same(before[key], after[key]) for key in before)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_same, before, after))
    if type(before) is not type(after):
        return False
    return before is after or (isinstance(before, int | float | complex | str | bytes) and before == after)


def shaped(part: Tensor, shape: torch.Size) -> Tensor:
    """Views (…, n) pieces of flat vectors as (…, *shape).

    Weights of four dimensions are stored channels-last, which convolutions prefer. Writing to the result
    writes to the vector.
    """
    if len(shape) != 4:
        return part.view(*part.shape[:-1], *shape)
    out, channels, height, width = shape
    return part.view(*part.shape[:-1], out, height, width, channels).movedim(-1, -3)
