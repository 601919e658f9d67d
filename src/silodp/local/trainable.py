"""Choosing which parameters train: the others stay as they are, cost no privacy and do not travel.

The noise on a mean has norm z·C·√d/N, so fewer parameters, at the same C, are less noise.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from silodp.errors import InputError
from silodp.models.norm import is_norm


def freeze_all_but(model: nn.Module, trainable: str) -> nn.Module:
    """Freezes, in place, every parameter that `trainable` does not name; frozen parameters stay frozen.

    Args:
        model: changed in place, and returned.
        trainable: "all"; or words joined by +: "norm" for the scales and shifts of norm layers, "head" for
            the last layer with parameters, else a pattern of parameters' names as in a shell, such as "up.*".

    Raises:
        InputError: a word names no parameter.
    """
    if trainable == "all":
        return model
    names = [name for name, _ in model.named_parameters()]
    chosen: set[str] = set()
    for word in trainable.split("+"):
        found = _named(model, names, word)
        if not found:
            raise InputError(f"model.trainable = {trainable}: {_nothing(model, word)}")
        chosen |= found
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in chosen)
    return model


def _named(model: nn.Module, names: list[str], word: str) -> set[str]:
    """The parameters that a word means; the last layer is the last in the order of definition."""
    if word == "norm":
        layers = {place for place, layer in model.named_modules() if is_norm(layer)}
        return {name for name in names if name.rpartition(".")[0] in layers}
    if word == "head":
        last = names[-1].rpartition(".")[0] if names else ""
        return {name for name in names if name.rpartition(".")[0] == last}
    return {name for name in names if fnmatchcase(name, word)}


def _nothing(model: nn.Module, word: str) -> str:
    """What to say where a word means no parameter."""
    if word == "norm":
        return "no norm layer has a scale and a shift; set model.affine=true, or leave norm out"
    shown = ", ".join(list(dict(model.named_parameters()))[-6:])
    return f"no parameter is called {word!r}; choose all, norm, head or patterns of names such as {shown}"
