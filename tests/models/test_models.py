"""The networks: the paper's sizes, nothing that travels unclipped, and a start that the seed fixes."""

import pytest
import torch
from monai.networks.nets import DenseNet as MonaiDenseNet
from monai.networks.nets import DenseNet121
from torch import nn

from silodp.errors import InputError
from silodp.local.parameters import refuse_unprotectable
from silodp.models import build_model
from silodp.models.densenet import DenseNet
from silodp.models.kinds import ModelSettings
from silodp.models.norm import NORMS, norm_layer, with_norm
from silodp.models.resnet import ResNet
from silodp.models.unet import UNet

DENSENET121 = ModelSettings.of(kind="densenet", features=64)


def small(kind: str, norm: str = "batch") -> ModelSettings:
    dense = {"growth": 4, "blocks": (2, 2)} if kind == "densenet" else {}
    return ModelSettings.of(kind=kind, features=4, norm=norm, **dense)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("features", "levels", "expected"),
    # The paper's; narrower; flatter, counted by hand: ways down 180 + 864 + 3,456, up 652 + 2,160, the end 5.
    [(32, 4, 7_756_577), (4, 4, 121_285), (4, 2, 7_317)],
)
def test_the_u_net_has_the_papers_size(features: int, levels: int, expected: int) -> None:
    model = UNet(1, 1, features, "batch", levels)
    assert parameters(model) == expected
    assert not list(model.buffers())


def test_densenet_is_monais_without_affine_norms() -> None:
    theirs = DenseNet121(spatial_dims=2, in_channels=3, out_channels=2)
    affine = sum(parameters(module) for module in theirs.modules() if isinstance(module, nn.BatchNorm2d))
    ours = build_model(DENSENET121, 3, 2, seed=0)
    assert parameters(theirs) == 6_955_906
    assert parameters(ours) == parameters(theirs) - affine == 6_872_258
    assert not list(ours.buffers())
    refuse_unprotectable(ours)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("features", "growth", "blocks"), [(16, 12, (3, 4, 4)), (5, 3, (2,))])
def test_densenet_is_monais_to_the_name_the_start_and_the_output(
    features: int, growth: int, blocks: tuple[int, ...], norm: str, affine: bool
) -> None:
    torch.manual_seed(3)
    size = {"init_features": features, "growth_rate": growth, "block_config": blocks}
    theirs = with_norm(MonaiDenseNet(spatial_dims=2, in_channels=3, out_channels=2, **size), norm, affine)
    torch.manual_seed(3)
    ours = DenseNet(3, 2, features, growth, blocks, norm, affine)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in theirs.named_modules()]
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("kind", "outputs", "shape"), [("unet", 1, (2, 1, 32, 32)), ("densenet", 3, (2, 3))])
def test_every_norm_runs_forward_and_backward(
    kind: str, outputs: int, shape: tuple[int, ...], norm: str
) -> None:
    model = build_model(small(kind, norm), 3, outputs, seed=1)
    result = model(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)))
    assert result.shape == shape
    result.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert not list(model.buffers())
    assert not any(list(module.parameters()) for module in model.modules() if "Norm" in type(module).__name__)


@pytest.mark.parametrize("norm", ["group", "instance"])
def test_without_batch_norm_an_image_does_not_see_the_others(norm: str) -> None:
    images = torch.randn(3, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    model = build_model(small("unet", norm), 1, 1, seed=1)
    torch.testing.assert_close(model(images)[:1], model(images[:1]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [(33, 32), (32, 40), (8, 8)])
def test_an_image_that_does_not_halve_four_times_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=rf"\({size[0]}, {size[1]}\) pixels.*multiples of 16"):
        UNet(1, 1, 2, "batch")(torch.zeros(2, 1, *size))
    if size != (33, 32):
        assert UNet(1, 1, 2, "batch", levels=2)(torch.zeros(2, 1, *size)).shape == (2, 1, *size)


def test_images_need_not_be_square() -> None:
    assert UNet(1, 2, 2, "batch")(torch.randn(2, 1, 16, 48)).shape == (2, 2, 16, 48)


@pytest.mark.parametrize("kind", ["unet", "densenet"])
def test_the_start_depends_on_the_seed_only(kind: str) -> None:
    starts = []
    for elsewhere, seed in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(elsewhere)
        before = torch.get_rng_state()
        model = build_model(small(kind), 1, 2, seed)
        assert torch.equal(torch.get_rng_state(), before)
        starts.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def old_style() -> nn.Sequential:
    inner = nn.Sequential(nn.Conv2d(6, 6, 3), nn.InstanceNorm2d(6, affine=True, track_running_stats=True))
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), inner, nn.GroupNorm(2, 6), nn.ReLU())


@pytest.mark.parametrize("kind", NORMS)
def test_with_norm_removes_buffers_and_affine_parameters(kind: str) -> None:
    model = old_style()
    with pytest.raises(InputError):
        refuse_unprotectable(model)
    assert with_norm(model, kind) is model
    refuse_unprotectable(model)
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "2.0.weight", "2.0.bias"]
    assert model(torch.randn(2, 1, 12, 12)).shape == (2, 6, 8, 8)


def test_batch_norm_uses_the_batch_even_when_evaluating() -> None:
    layer = norm_layer("batch", 3).eval()
    result = layer(torch.randn(8, 3, 4, 4) * 7 + 2)
    torch.testing.assert_close(result.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(result.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("channels", [1, 3, 4, 12, 64])
def test_group_norm_divides_any_number_of_channels(channels: int) -> None:
    assert norm_layer("group", channels)(torch.randn(2, channels, 4, 4)).shape == (2, channels, 4, 4)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="layer"):
        norm_layer("layer", 4)


def test_a_narrow_residual_network_trains_with_its_own_stride() -> None:
    """The shortcut is a convolution with stride 2; oneDNN's own corrupts memory below 8 (or 16) channels."""
    torch.manual_seed(0)
    model = ResNet(1, 2, 4, (1, 1), "group", affine=True).to(memory_format=torch.channels_last)
    block = model.blocks[1]
    assert isinstance(block.shortcut, nn.Conv2d)
    images = torch.randn(8, 1, 20, 20)
    for _ in range(20):
        model(images.to(memory_format=torch.channels_last)).square().sum().backward()
    maps = torch.relu(block.norm1(model.blocks[0](model.first(images))))
    strided = nn.functional.conv2d(maps, block.shortcut.weight, stride=2)
    inner = block.conv2(torch.relu(block.norm2(block.conv1(maps))))
    assert torch.allclose(block(model.blocks[0](model.first(images))), strided + inner, atol=1e-5)
    assert all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)
