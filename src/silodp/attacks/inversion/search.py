"""Gradient inversion: images whose gradient is aligned with an observed update (Geiping et al. 2020).

Minimises 1 − cos(gradient of the guess, −update) + weight · total variation over the pixels, with Adam, from
several random starts, and keeps the best match. Unknown masks are optimised together with the images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from silodp.attacks.inversion.descent import OnStep, descend, total_variation

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Search:
    """The effort of the attacker.

    Attributes:
        restarts: random starts.
        iterations: steps of Adam from each.
        total_variation: weight of the smoothness of the guess.
    """

    restarts: int = 2
    iterations: int = 500
    learning_rate: float = 0.05
    total_variation: float = 1e-5


@dataclass(frozen=True)
class Observed:
    """What the attacker knows.

    Attributes:
        network: at the parameters the update started from.
        loss: mean loss of a batch from (logits, targets); must accept soft masks if masks are unknown.
        update: Δ as one vector, in the order of the network's trainable parameters.
        brightness: the mean of images of this kind.
        shape: of the batch of images.
        targets: classes or masks; None if masks must be inferred.
        target_shape: of these masks.
    """

    network: nn.Module
    loss: Loss
    update: Tensor
    brightness: float
    shape: tuple[int, ...]
    targets: Tensor | None
    target_shape: tuple[int, ...]


@dataclass(frozen=True)
class Guess:
    """A reconstruction.

    Attributes:
        images: (n, channels, height, width) between −1 and 1.
        mismatch: 1 − cosine; 0 is a perfect match.
        read: the recovered layer input, in words; empty where gradients were matched.
    """

    images: Tensor
    mismatch: float
    read: str = ""


def invert_update(
    observed: Observed, search: Search, generator: torch.Generator, on_step: OnStep = lambda: None
) -> Guess:
    """The best guess of the images behind an update.

    Args:
        observed: what the attacker knows.
        search: the effort.
        generator: of the random starts, on the CPU.
        on_step: called after every step.
    """
    guesses = (_one_start(observed, search, generator, on_step) for _ in range(search.restarts))
    return min(guesses, key=lambda guess: guess.mismatch)


def _one_start(observed: Observed, search: Search, generator: torch.Generator, on_step: OnStep) -> Guess:
    network, update, targets = observed.network, observed.update, observed.targets
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    wanted = -update / update.norm().clamp_min(1e-30)
    images = observed.brightness + 0.3 * torch.randn(observed.shape, generator=generator)
    images = images.clamp(-1, 1).to(update.device).requires_grad_()
    masks = []
    if targets is None:
        hidden = 0.01 * torch.randn(observed.target_shape, generator=generator)
        masks.append(hidden.to(update.device).requires_grad_())

    def mismatch() -> Tensor:
        loss = observed.loss(network(images), masks[0].sigmoid() if targets is None else targets)
        flat = flatten(torch.autograd.grad(loss, parameters, create_graph=True))
        cosine: Tensor = flat @ wanted / flat.norm().clamp_min(1e-30)
        return 1 - cosine

    def cost() -> Tensor:
        return mismatch() + search.total_variation * total_variation(images)

    descend(images, cost, search.iterations, search.learning_rate, on_step, masks)
    return Guess(images.detach(), float(mismatch().detach()))


def flatten(tensors: tuple[Tensor, ...]) -> Tensor:
    """Gradients as one vector in the order of a `FlatModel`: 4D weights lie channels-last in it."""
    return torch.cat(
        [(tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor).reshape(-1) for tensor in tensors]
    )
