"""DenseNet from MONAI with norm layers that keep nothing; the default is the paper's DenseNet121."""

from __future__ import annotations

from torch import nn

from silodp.models.norm import with_norm


def densenet(
    channels: int,
    outputs: int,
    features: int,
    growth: int,
    blocks: tuple[int, ...],
    norm: str,
    affine: bool = False,
) -> nn.Module:
    """DenseNet121 is features 64, growth 32, blocks (6, 12, 24, 16)."""
    from monai.networks.nets import DenseNet

    network = DenseNet(
        spatial_dims=2,
        in_channels=channels,
        out_channels=outputs,
        init_features=features,
        growth_rate=growth,
        block_config=blocks,
    )
    return with_norm(network, norm, affine)
