"""Recovers the input of a convolution from its gradient, and the image with such an input.

The weight gradient is G = Σ_p δ_p a_pᵀ over the positions p of one image; a_p is the input's patch there.
With fewer positions than output channels all a_p, less their mean, lie in the space of G's rows (a norm layer
behind the convolution takes the mean away). Patches overlap, so that one input alone, but for its length, has
all its patches in that space. Reading it needs neither labels nor the loss, and without noise it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import fold, pad, unfold

from silodp.attacks.inversion.descent import OnStep, descend, total_variation
from silodp.local.augmentation import affine_flip

RANK = 1e-5  # singular values below this share of the first are rounding
POWER_STEPS = 300
PRIOR_IMAGES = 600
RIDGE = 1e-4
SMOOTHNESS = 0.05
LEARNING_RATE = 0.1


class _Reached(Exception):
    """Ends a forward pass where nothing behind it is needed."""


@dataclass(frozen=True)
class Reading:
    """The input of a convolution as recovered from an update.

    Attributes:
        layer: its name in the network.
        features: (1, channels, height, width), of unit length.
        agreement: |cosine| of the results of two random starts; 1 where the solution is unique, right or not.
    """

    layer: str
    features: Tensor
    agreement: float


def layer_input(network: nn.Module, layer: str, images: Tensor) -> Tensor:
    """The input of a layer, scaled to unit length."""
    seen: list[Tensor] = []

    def stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        raise _Reached

    handle = network.get_submodule(layer).register_forward_pre_hook(stop)
    try:
        network(images)
    except _Reached:
        pass
    finally:
        handle.remove()
    found: Tensor = seen[0] / seen[0].norm().clamp_min(1e-30)
    return found


def read_layer(
    network: nn.Module, gradients: dict[str, Tensor], shape: tuple[int, ...], generator: torch.Generator
) -> Reading | None:
    """The input of the first convolution that has no more positions than output channels.

    Args:
        network: in the mode it was trained in.
        gradients: of its parameters, by name; noise may be on them.
        shape: of the one image, (1, channels, height, width).
        generator: of the random starts, on the CPU.

    Returns:
        None for more than one image, and where there is no such layer.
    """
    if shape[0] != 1:
        return None
    for name, module in network.named_modules():
        if not _overlaps(module) or f"{name}.weight" not in gradients:
            continue
        rows = gradients[f"{name}.weight"].flatten(1).double()
        with torch.no_grad():
            inputs = layer_input(network, name, torch.zeros(shape, device=rows.device))
        positions = _patches(module, inputs).shape[2]
        whole_blocks = shape[2] % inputs.shape[2] == shape[3] % inputs.shape[3] == 0
        if positions > len(rows) or not whole_blocks:
            continue
        _, sizes, space = torch.linalg.svd(rows, full_matrices=False)
        rank = min(positions, int((sizes > RANK * sizes[0]).sum()))
        if 0 < rank < min(rows.shape):
            return _solve(name, module, space[:rank], inputs.shape, generator)
    return None


def _overlaps(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether patches overlap; otherwise each could be any point of the space."""
    return (
        isinstance(module, nn.Conv2d)
        and module.groups == 1
        and not isinstance(module.padding, str)
        and module.padding_mode == "zeros"
        and module.kernel_size[0] > module.stride[0]
        and module.kernel_size[1] > module.stride[1]
    )


def _patches(module: nn.Conv2d, inputs: Tensor) -> Tensor:
    assert not isinstance(module.padding, str)  # see _overlaps
    return unfold(inputs, module.kernel_size, module.dilation, module.padding, module.stride)


def _solve(
    name: str, module: nn.Conv2d, space: Tensor, shape: torch.Size, generator: torch.Generator
) -> Reading:
    """The input whose patches are closest to the space, by power iteration from two starts."""
    assert not isinstance(module.padding, str)  # see _overlaps
    most = module.kernel_size[0] * module.kernel_size[1]  # no input's patches are longer than √most times it
    guesses = torch.randn(2, *shape[1:], generator=generator, dtype=torch.double).to(space.device)
    for _ in range(POWER_STEPS):
        patches = _patches(module, guesses)
        patches = patches - patches.mean(2, keepdim=True)
        outside = patches - space.T @ (space @ patches)
        back = fold(
            outside, shape[2:], module.kernel_size, module.dilation, module.padding, module.stride
        )  # fmt: skip
        guesses = guesses - back / most
        guesses = guesses / guesses.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    one = guesses[:1]
    features = one * one.sum().sign()  # what comes out of a ReLU is never negative
    return Reading(name, features.float(), float((guesses[0] * guesses[1]).sum().abs()))


def reconstruct(
    network: nn.Module,
    reading: Reading,
    others: Tensor,
    iterations: int,
    generator: torch.Generator,
    on_step: OnStep,
) -> Tensor:
    """The image whose layer input is closest to the recovered one.

    The search starts from a linear map of neighbouring features to pixels, fitted to images of the same kind.
    Norm layers hide the contrast of the image, so smoothness is relative to it.

    Args:
        network: in the mode it was trained in.
        reading: the recovered layer input.
        others: (n, channels, height, width), images that the attacker has.
        iterations: steps of Adam.
        generator: on the CPU.
        on_step: called after every step.
    """
    wanted = reading.features
    count = min(PRIOR_IMAGES, 2 * iterations)  # fewer for a short search
    images = _linear_guess(network, reading, others.to(wanted.device), count, generator).requires_grad_()

    def cost() -> Tensor:
        distance = (layer_input(network, reading.layer, images) - wanted).square().sum()
        return distance + SMOOTHNESS * total_variation(images) / images.std().clamp_min(1e-3)

    descend(images, cost, iterations, LEARNING_RATE, on_step)
    return images.detach()


@torch.no_grad()
def _linear_guess(
    network: nn.Module, reading: Reading, others: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """Ridge regression of each block of pixels on the 3 × 3 features around it."""
    height, width = others.shape[2:]
    block = (height // reading.features.shape[2], width // reading.features.shape[3])

    def near(features: Tensor) -> Tensor:
        scaled = features * features.numel() ** 0.5
        return unfold(pad(scaled, (0, 0, 0, 0, 0, 1), value=1.0), 3, padding=1)[0].T.double()

    gram, product = torch.zeros((), device=others.device), torch.zeros((), device=others.device)
    chosen = torch.randint(len(others), (count,), generator=generator)
    of_flips = torch.Generator(others.device).manual_seed(int(chosen[0]))
    for number in chosen.tolist():
        image, _ = affine_flip(others[number : number + 1], None, of_flips)
        rows = near(layer_input(network, reading.layer, image))
        gram = gram + rows.T @ rows
        product = product + rows.T @ unfold(image, block, stride=block)[0].T.double()
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    pixels = near(reading.features) @ torch.linalg.solve(gram, product)
    return fold(pixels.T[None].float(), (height, width), block, stride=block).clamp(-1, 1)
