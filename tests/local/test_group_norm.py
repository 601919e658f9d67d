"""GroupNorm in passes is PyTorch's own, computed in double precision."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from silodp.local import group_norm as module
from silodp.local.group_norm import GroupNormOnGpu, InPasses, group_norm


def images(dtype: torch.dtype = torch.float64, mean: float = 2.0) -> Tensor:
    chance = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 8, 6, 5, generator=chance, dtype=torch.float64).mul_(3).add_(mean)
    return drawn.to(dtype).contiguous(memory_format=torch.channels_last)


def affine() -> tuple[Tensor, Tensor]:
    return torch.linspace(0.5, 2, 8, dtype=torch.float64), torch.linspace(-1, 1, 8, dtype=torch.float64)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("with_affine", [False, True])
def test_values_and_gradients_are_pytorchs(groups: int, with_affine: bool) -> None:
    given = [images(), *affine()] if with_affine else [images()]
    own = [one.clone().requires_grad_() for one in given]
    others = [one.clone().requires_grad_() for one in given]
    weights = own[1:] if with_affine else [None, None]
    found = InPasses.apply(own[0], groups, *weights, 1e-3)
    wanted = functional.group_norm(others[0], groups, *others[1:], eps=1e-3)
    torch.testing.assert_close(found, wanted)
    coefficients = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, own, coefficients),
        torch.autograd.grad(wanted, others, coefficients),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_only_the_gradients_that_are_asked_for() -> None:
    (weight, bias), frozen = affine(), images()
    found = InPasses.apply(frozen, 2, weight.requires_grad_(), bias, 1e-5)
    (gradient,) = torch.autograd.grad(found.square().sum(), [weight])
    wanted = functional.group_norm(frozen.contiguous(), 2, weight, bias)  # else PyTorch 2.13 crashes
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.square().sum(), [weight])[0])


@pytest.mark.parametrize("large", [1, 10**9])
def test_in_bfloat16_it_is_as_exact_as_bfloat16(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit roundoff of bfloat16 is 2⁻⁸; images, factor, summand and result are rounded to it."""
    monkeypatch.setattr(module, "LARGE", large)
    given = images(torch.bfloat16, mean=0.5)
    weight, bias = (one.float() for one in affine())
    found = group_norm(given, 2, weight, bias)
    assert found.dtype == torch.bfloat16
    wanted = functional.group_norm(given.double(), 2, *affine())
    error = (found.double() - wanted).norm() / wanted.norm()
    assert error < 2**-7


def test_the_order_of_channels_last_images_is_kept() -> None:
    found = InPasses.apply(images(), 2, None, None, 1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_constant_image_gives_zeros() -> None:
    flat = torch.full((1, 4, 3, 3), 7.0).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(InPasses.apply(flat, 2, None, None, 1e-5), torch.zeros_like(flat))


def test_a_network_on_a_cpu_keeps_pytorchs_own() -> None:
    layer = torch.nn.GroupNorm(2, 8)
    given = images(torch.float32)
    with GroupNormOnGpu():
        found = layer(given)
    assert torch.equal(found, layer(given))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("large", [1, 10**9])
def test_a_network_on_a_gpu_keeps_bfloat16(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", large)
    layer = torch.nn.GroupNorm(2, 8).cuda()
    given = images(torch.bfloat16).cuda()
    with torch.autocast("cuda", torch.bfloat16), GroupNormOnGpu():
        found = layer(given)
    assert found.dtype == torch.bfloat16
    wanted = functional.group_norm(given.double(), 2)
    assert (found.double() - wanted).norm() / wanted.norm() < 2**-7
