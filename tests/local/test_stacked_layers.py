"""Layers of stacked networks give what PyTorch's own batching gives, and pass the same gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from silodp.local.stacked_layers import ByChannels

LANES = 3
LABELS = torch.tensor([[0, 1, 2, -100], [1, -100, -100, 0], [2, 2, 2, 1]])


def drawn(*shape: int) -> Tensor:
    chance = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=chance, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("layer", "given", "lanes"),
    [
        (functional.linear, (drawn(LANES, 4, 5), drawn(LANES, 2, 5), drawn(LANES, 2)), (0, 0, 0)),
        (functional.linear, (drawn(4, LANES, 5), drawn(2, 5), drawn(2, LANES)), (1, None, 1)),
        (functional.linear, (drawn(LANES, 4, 5), drawn(LANES, 2, 5)), (0, 0)),
        (functional.linear, (drawn(LANES, 4, 3, 5), drawn(LANES, 2, 5), drawn(LANES, 2)), (0, 0, 0)),
        (functional.conv2d, (drawn(LANES, 4, 2, 6, 5), drawn(LANES, 3, 2, 3, 3), drawn(LANES, 3)), (0, 0, 0)),
        (functional.conv2d, (drawn(LANES, 4, 2, 6, 5), drawn(3, 2, 3, 3), drawn(3)), (0, None, None)),
        (functional.conv2d, (drawn(LANES, 4, 2, 6, 5), drawn(LANES, 3, 2, 3, 3)), (0, 0)),
        (functional.cross_entropy, (drawn(LANES, 4, 3), LABELS), (0, 0)),
        (functional.cross_entropy, (drawn(4, 3, LANES), LABELS[0]), (2, None)),
    ],
)  # fmt: skip
def test_a_layer_is_that_of_each_lane(
    layer: Callable[..., Tensor], given: tuple[Tensor, ...], lanes: tuple[int | None, ...]
) -> None:
    """Called once for every lane by itself, or by vmap with the rules."""
    apart = [
        [one] * LANES if lane is None else one.unbind(lane) for one, lane in zip(given, lanes, strict=True)
    ]
    alone = torch.stack([layer(*arguments) for arguments in zip(*apart, strict=True)])
    with ByChannels():
        together = torch.vmap(layer, lanes)(*given)
    torch.testing.assert_close(together, alone)
    ways = torch.linspace(-1, 1, together.numel()).view(together.shape)
    learnt = [one for one in given if one.requires_grad]
    gradients = [torch.autograd.grad((found * ways).sum(), learnt) for found in (together, alone)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "named",
    [
        {"label_smoothing": 0.1},
        {"reduction": "sum"},
        {"weight": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)},
        {"ignore_index": 2},
    ],
    ids=str,
)
def test_a_loss_of_another_kind_is_what_it_says(named: dict[str, Tensor | float | str]) -> None:
    logits, labels = drawn(LANES, 4, 3), LABELS.clamp(min=0)
    alone = [functional.cross_entropy(*pair, **named) for pair in zip(logits, labels, strict=True)]  # type: ignore[arg-type]
    with ByChannels():
        together = torch.vmap(lambda *pair: functional.cross_entropy(*pair, **named))(logits, labels)
    torch.testing.assert_close(together, torch.stack(alone))
