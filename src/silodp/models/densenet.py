"""DenseNet (Huang et al. 2017) with norm layers without buffers; the default is the paper's DenseNet121.

Parameters have the names, the order and, from one seed, the initial values of MONAI's DenseNet, so that
models and runs made with it stay valid (a test compares the two). MONAI is not imported, since that takes
seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from silodp.models.norm import norm_layer

_BOTTLENECK = 4
"""A layer's inner channels, as a multiple of what it adds."""


class _Layer(nn.Module):
    """norm → ReLU → convolution, to a bottleneck and then to `growth` channels, concatenated to the input."""

    def __init__(self, channels: int, growth: int, norm: str, affine: bool) -> None:
        super().__init__()
        inner = _BOTTLENECK * growth
        self.layers = _named(
            norm1=norm_layer(norm, channels, affine),
            relu1=nn.ReLU(inplace=True),
            conv1=nn.Conv2d(channels, inner, 1, bias=False),
            norm2=norm_layer(norm, inner, affine),
            relu2=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], 1)


class DenseNet(nn.Module):
    """(n, channels, h, w) → (n, outputs). DenseNet121 is features 64, growth 32, blocks (6, 12, 24, 16)."""

    def __init__(
        self,
        channels: int,
        outputs: int,
        features: int,
        growth: int,
        blocks: Sequence[int],
        norm: str,
        affine: bool = False,
    ) -> None:
        super().__init__()
        width = features
        self.features = _named(
            conv0=nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
            norm0=norm_layer(norm, width, affine),
            relu0=nn.ReLU(inplace=True),
            pool0=nn.MaxPool2d(3, stride=2, padding=1),
        )
        for number, count in enumerate(blocks, start=1):
            layers = {
                f"denselayer{place + 1}": _Layer(width + place * growth, growth, norm, affine)
                for place in range(count)
            }
            self.features.add_module(f"denseblock{number}", _named(**layers))
            width += count * growth
            if number < len(blocks):  # half the channels, half the resolution
                between = _named(
                    norm=norm_layer(norm, width, affine),
                    relu=nn.ReLU(inplace=True),
                    conv=nn.Conv2d(width, width // 2, 1, bias=False),
                    pool=nn.AvgPool2d(2),
                )
                self.features.add_module(f"transition{number}", between)
                width //= 2
        self.features.add_module("norm5", norm_layer(norm, width, affine))
        head = nn.Linear(width, outputs)
        self.class_layers = _named(
            relu=nn.ReLU(inplace=True), pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(1), out=head
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(head.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.class_layers(self.features(images))  # type: ignore[no-any-return]


def _named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))
