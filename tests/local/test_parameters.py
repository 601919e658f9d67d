"""The flat vector is the model: whoever changes one changes the other."""

import math
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from silodp.errors import InputError
from silodp.local.parameters import FlatModel, Snapshot

CPU = torch.device("cpu")


def network() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
        nn.Flatten(),
        nn.Linear(3 * 16 * 16, 5),
    )


def pictures() -> Tensor:
    return torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(2))


def test_flattening_leaves_the_forward_result() -> None:
    plain = network()
    expected = plain(pictures())
    flat = FlatModel(deepcopy(plain), CPU)
    torch.testing.assert_close(flat.module(pictures()), expected, rtol=1e-4, atol=1e-4)
    assert len(flat) == sum(p.numel() for p in plain.parameters())


def test_changing_the_vector_changes_the_model_and_back() -> None:
    flat = FlatModel(network(), CPU)
    flat.values.fill_(0.25)
    assert all(bool((p == 0.25).all()) for p in flat.module.parameters())
    with torch.no_grad():
        for parameter in flat.module.parameters():
            parameter.mul_(4)
    assert bool((flat.values == 1).all())


def test_gradients_land_in_the_flat_buffer_and_a_step_on_the_vector_is_one_of_the_model() -> None:
    plain = network()
    flat = FlatModel(deepcopy(plain), CPU)
    for model in (plain, flat.module):
        model(pictures()).square().sum().backward()
    named = flat.named_tensors(flat.gradients)
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(named[name], parameter.grad, msg=name)
    torch.optim.SGD(plain.parameters(), 1e-3).step()
    flat.values.sub_(1e-3 * flat.gradients)
    torch.testing.assert_close(flat.module(pictures()), plain(pictures()), rtol=1e-4, atol=1e-4)
    flat.gradients.zero_()
    assert all(p.grad is not None and not p.grad.any() for p in flat.module.parameters())


def test_named_tensors_are_the_state_dict() -> None:
    plain = network()
    named = FlatModel(deepcopy(plain), CPU)
    tensors = named.named_tensors(named.values)
    expected = plain.state_dict()
    assert list(tensors) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].is_contiguous()


def test_frozen_parameters_stay_outside_the_vector() -> None:
    plain = network()
    plain[0].requires_grad_(False)
    flat = FlatModel(deepcopy(plain), CPU)
    assert len(flat) == sum(p.numel() for p in plain.parameters() if p.requires_grad)
    flat.values.zero_()
    assert torch.equal(flat.module[0].weight, plain[0].weight)
    assert not flat.module[2].weight.any()
    assert flat.module[0].weight.grad is None
    tensors = flat.named_tensors(torch.ones(len(flat)))
    assert list(tensors) == list(plain.state_dict())
    assert torch.equal(tensors["0.weight"], plain[0].weight)
    assert bool((tensors["4.bias"] == 1).all())


def test_half_precision_models_become_single() -> None:
    flat = FlatModel(network().half(), CPU)
    assert flat.values.dtype == torch.float32
    assert {p.dtype for p in flat.module.parameters()} == {torch.float32}


def with_buffer() -> nn.Module:
    """A buffer that files leave out."""
    model = nn.Linear(2, 2)
    model.register_buffer("memory", torch.zeros(3), persistent=False)
    return model


def with_counter() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_parameter("counter", nn.Parameter(torch.tensor([3]), requires_grad=False))
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (with_buffer(), "buffer 'memory'"),
        (with_counter(), r"parameter 'counter' is torch\.int64"),
        (network().requires_grad_(False), "no trainable parameter"),
    ],
    ids=["buffer", "whole numbers", "frozen"],
)
def test_what_noise_cannot_protect_is_refused_by_name(model: nn.Module, words: str) -> None:
    """Buffers of BatchNorm are in test_known_defects.py."""
    with pytest.raises(InputError, match=words):
        FlatModel(model, CPU)


class RunningMean(nn.Module):
    """Keeps a running mean of what it saw in a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.mean.data.mul_(0.9).add_(images.mean())
        return self.scale * images.mean() - self.mean


def test_frozen_parameters_are_those_of_the_start_whatever_forward_did() -> None:
    flat = FlatModel(RunningMean(), CPU)
    start = flat.values.clone()
    flat.module(torch.full((3,), 7.0))
    assert float(flat.module.mean[0]) != 0  # type: ignore[index]
    assert torch.equal(flat.named_tensors(start)["mean"], torch.zeros(2))
    flat.load(start)
    assert torch.equal(flat.module.mean, torch.zeros(2))  # type: ignore[arg-type]


def test_what_is_written_shares_no_memory_with_the_model() -> None:
    flat = FlatModel(RunningMean(), CPU)
    written = flat.named_tensors(flat.values)
    flat.values.add_(1)
    assert torch.equal(written["scale"], torch.ones(2))


@pytest.mark.parametrize(
    ("keep", "name"),
    [
        (lambda layer, x: setattr(layer, "seen", x.mean()), "seen"),
        (lambda layer, x: setattr(layer, "running", float(x.mean())), "running"),
        (lambda layer, x: layer.values.append(x.mean()), "values"),
        (lambda layer, x: layer.table.update(last=x.mean()), "table"),
        (lambda layer, x: layer.weight.data.add_(x.mean()), "weight"),
        (lambda layer, x: layer.bias.data.add_(x.mean()), "bias"),
        (lambda layer, x: None, None),
    ],
)
def test_a_snapshot_names_what_a_forward_pass_changed(keep: Callable[..., None], name: str | None) -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    layer.running, layer.values, layer.table, layer.nan = 0.0, [], {}, torch.tensor(math.nan)  # type: ignore[assignment]
    module = nn.Sequential(layer)
    before = Snapshot(module)
    keep(layer, torch.ones(3))
    assert before.changed() == (name and f"0.{name}")
