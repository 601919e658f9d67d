"""The paper's U-Net at any width and depth: double convolutions, transposed convolutions up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from silodp.errors import InputError
from silodp.models.norm import norm_layer


def _block(channels_in: int, channels_out: int, norm: str, affine: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (channels_in, channels_out):
        layers += [
            nn.Conv2d(channels, channels_out, 3, padding=1, bias=False),
            norm_layer(norm, channels_out, affine),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """U-Net with `features` channels at full resolution, which it halves `levels` times.

    32 and 4 are the paper's (7.76 M parameters).
    """

    def __init__(
        self, channels: int, outputs: int, features: int, norm: str, levels: int = 4, affine: bool = False
    ) -> None:
        super().__init__()
        self.levels = levels
        widths = [features * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(
            _block(below, width, norm, affine)
            for below, width in zip([channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in widths[:-1])
        self.merge = nn.ModuleList(_block(2 * width, width, norm, affine) for width in widths[:-1])
        self.head = nn.Conv2d(features, outputs, 1)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] % 2**self.levels or images.shape[-2] % 2**self.levels:
            raise InputError(
                f"model.kind = unet: images of {tuple(images.shape[-2:])} pixels; "
                f"height and width must be multiples of {2**self.levels} (model.levels = {self.levels})"
            )
        skipped: list[Tensor] = []
        x = images
        for level, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if level else x)
            skipped.append(x)
        for level in reversed(range(self.levels)):
            x = self.merge[level](torch.cat([self.up[level](x), skipped[level]], dim=1))
        return self.head(x)  # type: ignore[no-any-return]
