"""A small residual network for classification: pre-activation blocks (He et al. 2016) with any norm layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from silodp.models.norm import norm_layer


class _Block(nn.Module):
    """norm → ReLU → convolution, twice, with a shortcut; the first convolution may halve the image."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: str, affine: bool) -> None:
        super().__init__()
        self.norm1 = norm_layer(norm, channels_in, affine)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm2 = norm_layer(norm, channels_out, affine)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        same = channels_in == channels_out and stride == 1
        self.shortcut = None if same else nn.Conv2d(channels_in, channels_out, 1, bias=False)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(x))
        # Every second pixel is taken here: on a CPU oneDNN's own stride writes past its memory where there
        # are fewer channels than it puts into a block of 8 or 16 (uxlfoundation/oneDNN issue 6035).
        shortcut = x if self.shortcut is None else self.shortcut(inner[..., :: self.stride, :: self.stride])
        inner = self.conv1(inner)
        return shortcut + self.conv2(torch.relu(self.norm2(inner)))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """`features` channels at half resolution; each further stage doubles them and halves the image."""

    def __init__(
        self, channels: int, outputs: int, features: int, blocks: Sequence[int], norm: str, affine: bool
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, features, 3, stride=2, padding=1, bias=False)
        stages: list[nn.Module] = []
        width = features
        for stage, count in enumerate(blocks):
            wider = features * 2**stage
            for number in range(count):
                stride = 2 if stage and not number else 1
                stages.append(_Block(width, wider, stride, norm, affine))
                width = wider
        self.blocks = nn.Sequential(*stages)
        self.norm = norm_layer(norm, width, affine)
        self.head = nn.Linear(width, outputs)

    def maps(self, images: Tensor) -> Tensor:
        """The last feature maps, (n, width, h, w)."""
        return torch.relu(self.norm(self.blocks(self.first(images))))

    def classify(self, maps: Tensor) -> Tensor:
        return self.head(maps.mean((2, 3)))  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.maps(images))
