"""Domain randomisation: each time an image is used it gets another geometry, contrast and scanner.

Random contrasts, far from real ones, teach a network shapes instead of grey values (Billot et al. 2023,
SynthSeg), so that it generalises to real images without training on any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample, interpolate

Range = tuple[float, float]
KNOTS = 9  # of a random map of grey values


@dataclass(frozen=True)
class Style:
    """Ranges of the changes, drawn uniformly (`zoom` uniformly in its logarithm).

    Attributes:
        zoom: above 1 shows less of the image, larger.
        on_target: whether to centre on the target instead of the image, before `shift`.
        shift: standard deviation, in half widths of the result.
        turn: largest rotation in degrees.
        any_way: whether to add random quarter turns, as for files of unknown orientation.
        stretch: largest logarithm of the change of aspect.
        wobble: amplitude of the elastic deformation, in half image widths.
        contrast: how far the curve of grey values may leave the identity, 0 to 1.
        one_contrast: whether all images share that curve, as from one kind of scanner.
        texture: standard deviation of multiplicative smooth noise.
        drift: amplitude of a slowly varying multiplicative field.
        noise: standard deviation of additive noise.
        dark: whether it is black beyond the edge of the image; otherwise the edge is repeated.
    """

    zoom: Range = (0.8, 1.3)
    on_target: bool = False
    shift: float = 0.06
    turn: float = 20.0
    any_way: bool = False
    stretch: float = 0.1
    wobble: float = 0.05
    contrast: float = 1.0
    one_contrast: bool = False
    texture: float = 0.2
    drift: float = 0.35
    noise: float = 0.1
    dark: bool = False


def randomise(
    images: Tensor,
    masks: Tensor,
    style: Style,
    size: int,
    rng: torch.Generator,
    of_contrast: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Changes images and masks at random; nothing is changed in place.

    Args:
        images: (n, c, h, w) in 0…1.
        masks: (n, m, h, w).
        size: height and width of the result.
        rng: generator on the device of the images.
        of_contrast: another generator for the curves of grey values; default: `rng`.

    Returns:
        Images (n, c, size, size) in −1…1 and masks (n, m, size, size) of 0 and 1, as float32 on that device.
    """
    grid = _grid(images, masks, style, size, rng)
    edge = "zeros" if style.dark else "border"
    seen = grid_sample(images, grid, padding_mode=edge, align_corners=False)
    moved = (grid_sample(masks.float(), grid, align_corners=False) > 0.5).float()
    return _scanned(seen, style, rng, of_contrast or rng), moved


def _uniform(images: Tensor, rng: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """(n, 1, 1, 1)."""
    drawn = torch.rand(len(images), 1, 1, 1, generator=rng, device=images.device)
    return low + (high - low) * drawn


def _smooth(images: Tensor, cells: int, rng: torch.Generator) -> Tensor:
    """Smooth noise (n, 1, h, w) with mean 0 and variance about 1."""
    coarse = torch.randn(len(images), 1, cells, cells, generator=rng, device=images.device)
    fine = interpolate(coarse, size=images.shape[-2:], mode="bicubic", align_corners=False)
    return fine / 0.75  # interpolation reduces the variance


def _grid(images: Tensor, masks: Tensor, style: Style, size: int, rng: torch.Generator) -> Tensor:
    count, device = len(images), images.device
    line = (torch.arange(size, device=device) + 0.5) * 2 / size - 1
    y, x = torch.meshgrid(line, line, indexing="ij")
    flip = torch.where(_uniform(images, rng) < 0.5, -1.0, 1.0)
    angle = _uniform(images, rng, -1, 1) * math.radians(style.turn)
    if style.any_way:
        angle = angle + (_uniform(images, rng) * 4).floor() * (math.pi / 2)
    scale = torch.exp(-_uniform(images, rng, math.log(style.zoom[0]), math.log(style.zoom[1])))
    narrow = torch.exp(style.stretch * _uniform(images, rng, -1, 1))
    place = torch.stack([x.expand(count, -1, -1), y.expand(count, -1, -1)], dim=1)
    small = max(2, round(size / 16))
    bent = torch.randn(count, 2, small, small, generator=rng, device=device)
    bent = interpolate(bent, size=(size, size), mode="bicubic", align_corners=False)
    place = place + style.wobble * _uniform(images, rng) * bent
    place = place + style.shift * torch.randn(count, 2, 1, 1, generator=rng, device=device)
    across, down = place[:, :1] * narrow * flip, place[:, 1:] / narrow
    turned = torch.cat(
        [across * angle.cos() - down * angle.sin(), across * angle.sin() + down * angle.cos()], dim=1
    )
    where = turned * scale
    if style.on_target:
        where = where + _middles(masks)
    return where.permute(0, 2, 3, 1)


def _middles(masks: Tensor) -> Tensor:
    """Centres of the masks, (n, 2, 1, 1): x and y in −1…1, 0 for empty masks."""
    cover = masks.float().amax(1)
    height, width = cover.shape[-2:]
    x = (torch.arange(width, device=masks.device) + 0.5) * 2 / width - 1
    y = (torch.arange(height, device=masks.device) + 0.5) * 2 / height - 1
    total = cover.sum((1, 2)).clamp_min(1e-6)
    both = torch.stack([(cover.sum(1) * x).sum(1) / total, (cover.sum(2) * y).sum(1) / total], dim=1)
    return both[:, :, None, None]


def _scanned(images: Tensor, style: Style, rng: torch.Generator, of_contrast: torch.Generator) -> Tensor:
    """Changes contrast, texture, sharpness, drift, noise and display window of each image."""
    seen = _mapped(images.clamp(0, 1), style, of_contrast)
    for cells in (10, 24):
        seen = seen * (1 + style.texture * _uniform(images, rng) ** 2 * _smooth(images, cells, rng))
    soft = avg_pool2d(seen, 3, 1, 1, count_include_pad=False)
    seen = seen + _uniform(images, rng, -0.6, 1.0) * (soft - seen)
    seen = seen * torch.exp(style.drift * _uniform(images, rng) * _smooth(images, 3, rng))
    noise = torch.randn(seen.shape, generator=rng, device=seen.device)
    seen = seen + style.noise * _uniform(images, rng) ** 2 * noise
    flat = seen.flatten(1)
    low = torch.quantile(flat, 0.01, dim=1)[:, None, None, None] * _uniform(images, rng)
    high = torch.quantile(flat, 0.99, dim=1)[:, None, None, None] * _uniform(images, rng, 0.8, 1.2)
    return ((seen - low) / (high - low).clamp_min(1e-3)).clamp(0, 1) * 2 - 1


def _mapped(images: Tensor, style: Style, rng: torch.Generator) -> Tensor:
    """Applies a random curve to grey values, between the identity and any curve, mostly rising."""
    count, device = 1 if style.one_contrast else len(images), images.device
    steps = torch.rand(count, KNOTS, generator=rng, device=device) ** 2
    rising = steps.cumsum(1) / steps.sum(1, keepdim=True)
    anything = torch.rand(count, KNOTS, generator=rng, device=device)
    share = torch.rand(count, 1, generator=rng, device=device) ** 3  # few curves fall
    line = torch.linspace(0, 1, KNOTS, device=device)
    much = style.contrast * torch.rand(count, 1, generator=rng, device=device)
    curve = (line + much * ((1 - share) * rising + share * anything - line)).expand(len(images), -1)
    place = images * (KNOTS - 1)
    below = place.floor().clamp(0, KNOTS - 2)
    index = below.long().flatten(1)
    low, high = curve.gather(1, index), curve.gather(1, index + 1)
    between = (place - below).flatten(1)
    return (low + (high - low) * between).view_as(images)
