"""The kinds of networks: each is a class with its settings and code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from silodp.errors import InputError
from silodp.models.norm import NORMS
from silodp.models.start import Origin
from silodp.settings import Count, Rule

if TYPE_CHECKING:
    from torch import nn


def _known_norm(name: str) -> str:
    if name not in NORMS:
        raise ValueError(f"choose one of {', '.join(NORMS)}")
    return name


class ModelSettings(Rule):
    """The network.

    Attributes:
        task: the only task that its output fits; None: unknown.
    """

    section: ClassVar[str] = "model"
    key: ClassVar[str] = "kind"
    usual: ClassVar[str] = "unet"
    task: ClassVar[str | None] = None
    kind: str
    trainable: Annotated[str, Field(min_length=1)] = "all"
    """What trains and travels: all; norm (scales and shifts), head (the last layer), or patterns of
    parameters' names, joined by +, such as "norm+head" or "up.*+head". The rest stays as it starts."""
    start: str | None = None
    """A start of silodp's own by its name, or a safetensors file; by default chance."""
    start_head: Literal["start", "new"] = "start"
    """new: the last layer begins by chance, for other classes than the start's."""
    start_origin: Origin | None = None
    """What the start was trained on: generated, which its file must say; public, for which you vouch; else
    unknown, and ε does not cover it. Written when a run starts."""
    start_digest: str | None = None
    """SHA-256 of the start's file; written when a run starts."""

    def make(self, channels: int, outputs: int) -> nn.Module:
        """A new network for images of `channels`, with one output a class or mask."""
        raise NotImplementedError


class CustomModel(ModelSettings):
    """One that was given from Python."""

    kind: Literal["custom"] = "custom"

    def make(self, channels: int, outputs: int) -> nn.Module:
        raise InputError(
            "model.kind = custom: this experiment was given its network from Python; "
            "run it with silodp.train(experiment, model=…)"
        )


class OwnNetwork(ModelSettings):
    """Settings that all networks of the package have."""

    features: Annotated[int, Field(ge=1, le=1024)] = 8
    """The network's width."""
    norm: Annotated[str, AfterValidator(_known_norm)] = "group"
    """Norm layers: group, instance, or batch as in the paper, with which an image's prediction depends on the
    others of its batch; none keeps running statistics."""
    affine: bool = False
    """Whether norm layers have a scale and a shift."""


class UNetModel(OwnNetwork):
    """The paper's U-Net (Ronneberger et al. 2015)."""

    task: ClassVar[str | None] = "segmentation"
    kind: Literal["unet"] = "unet"
    levels: Annotated[int, Field(ge=1, le=8)] = 4
    """How often it halves the image."""

    def make(self, channels: int, outputs: int) -> nn.Module:
        from silodp.models.unet import UNet

        return UNet(channels, outputs, self.features, self.norm, self.levels, self.affine)


class DenseNetModel(OwnNetwork):
    """The paper's DenseNet (Huang et al. 2017)."""

    task: ClassVar[str | None] = "classification"
    kind: Literal["densenet"] = "densenet"
    growth: Annotated[int, Field(ge=1, le=256)] = 32
    """Channels that a layer adds."""
    blocks: tuple[Count, ...] = (6, 12, 24, 16)
    """Layers of each block."""

    def make(self, channels: int, outputs: int) -> nn.Module:
        from silodp.models.densenet import DenseNet

        return DenseNet(channels, outputs, self.features, self.growth, self.blocks, self.norm, self.affine)


class ResNetModel(OwnNetwork):
    """A small residual network (He et al. 2016), with which starts for classification are made."""

    task: ClassVar[str | None] = "classification"
    kind: Literal["resnet"] = "resnet"
    blocks: tuple[Count, ...] = (2, 2, 2, 1)
    """Residual blocks of each stage."""

    def make(self, channels: int, outputs: int) -> nn.Module:
        from silodp.models.resnet import ResNet

        return ResNet(channels, outputs, self.features, self.blocks, self.norm, self.affine)
