"""Augmentation: masks move with their images, and a style without changes changes nothing."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from silodp.pretraining.kinds import GENERATED
from silodp.pretraining.randomise import Style, _mapped, randomise

STILL = Style(
    zoom=(1, 1), shift=0, turn=0, stretch=0, wobble=0, contrast=0, texture=0, drift=0, noise=0, dark=True
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def discs(count: int = 6, size: int = 48) -> torch.Tensor:
    """(n, 1, size, size) of 0 and 1: discs away from the middle."""
    line = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(line, line, indexing="ij")
    places = torch.linspace(-0.4, 0.4, count)
    return torch.stack([((x - a) ** 2 + (y + a / 2) ** 2 < 0.1).float()[None] for a in places])


@given(st.integers(0, 2**32))
def test_masks_move_with_their_images(seed: int) -> None:
    """An image that is its own mask stays one, whatever the geometry; edges are smoothed, so a few differ."""
    style = replace(GENERATED["pelvis"].style, contrast=0, texture=0, drift=0, noise=0, dark=True)
    seen, moved = randomise(discs(), discs(), style, 32, rng(seed))
    assert seen.shape == moved.shape == (6, 1, 32, 32)
    assert set(moved.unique().tolist()) <= {0.0, 1.0}
    bright = seen > (seen.amax((1, 2, 3), keepdim=True) + seen.amin((1, 2, 3), keepdim=True)) / 2
    assert ((bright != (moved > 0)).float().mean((1, 2, 3)) < 0.08).all()


def test_a_still_style_mirrors_at_most() -> None:
    images = discs()
    seen, moved = randomise(images, images, STILL, 48, rng())
    for image, mask in zip(images, moved, strict=True):
        assert torch.equal(mask, image) or torch.equal(mask, image.flip(-1))
    assert len({torch.equal(one, other) for one, other in zip(images, moved, strict=True)}) == 2
    assert float(seen.min()) >= -1
    assert float(seen.max()) <= 1


def test_zoom_is_the_ratio_of_lengths() -> None:
    style = replace(STILL, zoom=(2, 2), on_target=True)
    area = discs().sum((1, 2, 3))
    _, moved = randomise(discs(), discs(), style, 48, rng())
    ratio = moved.sum((1, 2, 3)) / area
    assert ratio.min() > 3.5  # four times the area
    assert ratio.max() < 4.5


def test_on_target_the_target_is_in_the_middle() -> None:
    style = replace(STILL, on_target=True)
    _, moved = randomise(discs(), discs(), style, 48, rng())
    line = torch.linspace(-1, 1, 48)
    for mask in moved[:, 0]:
        assert abs(float((mask.sum(0) * line).sum() / mask.sum())) < 0.05
        assert abs(float((mask.sum(1) * line).sum() / mask.sum())) < 0.05


@pytest.mark.parametrize("shared", [True, False])
def test_images_share_a_contrast_only_where_it_is_said(shared: bool) -> None:
    """The same image eight times: one map keeps it the same, maps of their own do not."""
    ramp = torch.linspace(0, 1, 48).expand(8, 1, 48, 48)
    seen = _mapped(ramp, replace(STILL, contrast=1, one_contrast=shared), rng())
    assert [torch.equal(one, seen[0]) for one in seen[1:]] == [shared] * 7


def test_the_same_seed_gives_the_same_images() -> None:
    style = GENERATED["shapes"].style
    first, again, other = (randomise(discs(), discs(), style, 32, rng(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
