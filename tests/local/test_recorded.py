"""A recorded function is the function to the bit, or it is not recorded."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from silodp.local.recorded import Function, recorded

WEIGHT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def counted(function: Function, resident: Tensor) -> tuple[Function, list[int]]:
    """The function as it is recorded, and how often the original is called."""
    calls = []

    def told(*given: Tensor) -> tuple[Tensor, ...]:
        calls.append(1)
        return function(*given)

    repeat = recorded(told, [numbers(5, 4)], resident)
    calls.clear()
    return repeat, calls


def with_gradient(images: Tensor) -> tuple[Tensor, ...]:
    """Views, a saved result, several results of one operator, and a backward pass."""
    left, right = nn.functional.linear(images, WEIGHT).tanh().split([1, 2], dim=1)
    loss = (left * right).square().sum()
    return loss.detach(), *torch.autograd.grad(loss, [WEIGHT])


def changes_in_place(images: Tensor) -> tuple[Tensor, ...]:
    work = images.clone()
    work.view(-1)[::2].mul_(3)
    work.add_(WEIGHT.sum())
    return (work,)


def returns_what_it_is_given(images: Tensor) -> tuple[Tensor, ...]:
    return images.detach(), WEIGHT.view(4, 3), torch.zeros(2)


def pools_after_relu(images: Tensor) -> tuple[Tensor, ...]:
    drawn = nn.functional.relu(images.view(1, 1, 5, 4) * WEIGHT.sum())
    loss = nn.functional.max_pool2d(drawn, 2, padding=1).square().sum()
    return loss.detach(), *torch.autograd.grad(loss, [WEIGHT])


def needs_relu_before_pooling(images: Tensor) -> tuple[Tensor, ...]:
    drawn = nn.functional.relu(images.view(1, 1, 5, 4) * WEIGHT.sum())
    loss = nn.functional.max_pool2d(drawn, 2).square().sum() + drawn.sum()
    return loss.detach(), *torch.autograd.grad(loss, [WEIGHT])


@pytest.mark.parametrize(
    "function",
    [with_gradient, changes_in_place, returns_what_it_is_given, pools_after_relu, needs_relu_before_pooling],
)
def test_other_values_give_what_the_function_gives(function: Function) -> None:
    """Of its arguments, and of the memory that it reads."""
    WEIGHT.requires_grad_()
    repeat, calls = counted(function, WEIGHT)
    with torch.no_grad():
        WEIGHT.add_(0.5)
    for seed in (1, 2):
        given = numbers(5, 4, seed=seed)
        expected = function(given.clone())
        for one, other in zip(repeat(given.clone()), expected, strict=True):
            assert torch.equal(one, other)
            assert not one.requires_grad or one is WEIGHT
    assert not calls


class Passed(TorchDispatchMode):
    """How many numbers ReLU is given."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if function is torch.ops.aten.relu.default:
            self.numbers += given[0].numel()
        return function(*given, **(named or {}))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 0.0, -0.0, -1.0])
def test_relu_follows_the_pooling_that_follows_it(odd: float) -> None:
    """To the bit, also where a window has nothing above zero, or no numbers."""
    WEIGHT.requires_grad_()
    repeat, _ = counted(pools_after_relu, WEIGHT)
    given = numbers(5, 4, seed=4)
    given[1:3, 1:] = odd
    with Passed() as passed:
        found = repeat(given)
    assert passed.numbers == 9  # windows, of 20 numbers
    for one, other in zip(found, pools_after_relu(given), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def looks_at_values(images: Tensor) -> tuple[Tensor, ...]:
    return (images * 2,) if float(images[0, 0]) > 0 else (images - 1,)


def looks_at_an_order(images: Tensor) -> tuple[Tensor, ...]:
    return (images[images[:, 0].argmax().item() :].sum(),)


def draws(images: Tensor) -> tuple[Tensor, ...]:
    return (images * random.random(),)


def draws_with_numpy(images: Tensor) -> tuple[Tensor, ...]:
    return (images * float(np.random.rand()),)


def goes_by_numpy(images: Tensor) -> tuple[Tensor, ...]:
    """NumPy reads the memory itself, where nothing can be written down."""
    return (images + torch.from_numpy(images.numpy() * 2),)


@pytest.mark.parametrize(
    "function", [looks_at_values, looks_at_an_order, draws, draws_with_numpy, goes_by_numpy]
)
def test_what_depends_on_more_than_shapes_is_not_recorded(
    function: Function,
) -> None:
    repeat, calls = counted(function, WEIGHT)
    repeat(numbers(5, 4, seed=3))
    assert len(calls) == 1


def test_an_error_is_the_function_s_own() -> None:
    """Then nothing is recorded, and the next try may succeed."""

    def picks(places: Tensor) -> tuple[Tensor, ...]:
        return (WEIGHT.detach()[0].index_select(0, places),)

    with pytest.raises(IndexError):
        recorded(picks, [torch.tensor([1, 9])], WEIGHT)
    repeat = recorded(picks, [torch.tensor([1, 2])], WEIGHT)
    with pytest.raises(IndexError):
        repeat(torch.tensor([1, 9]))
    assert torch.equal(repeat(torch.tensor([3, 3]))[0], WEIGHT[0, [3, 3]])
