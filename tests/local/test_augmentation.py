"""Augmentation: as far as the paper says and no further, and masks go where their images go."""

import math

import pytest
import torch
from torch import Tensor

from silodp.local import augmentation
from silodp.local.augmentation import affine_flip

SIZE = 64


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def still(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setattr(augmentation, name, 0.0)


def pixels(size: int = SIZE) -> tuple[Tensor, Tensor]:
    """x to the right, y down, of each pixel's centre, in -1…1."""
    line = (torch.arange(size) + 0.5) * 2 / size - 1
    return line.expand(size, size), line[:, None].expand(size, size)


def spot(x: float, y: float) -> Tensor:
    across, down = pixels()
    return torch.exp(-((across - x) ** 2 + (down - y) ** 2) / (2 * 0.08**2))[None]


def centres(images: Tensor) -> Tensor:
    """(n, 2): where each picture's spot is."""
    weight = images[:, 0] / images[:, 0].sum((1, 2), keepdim=True)
    return torch.stack([(weight * axis).sum((1, 2)) for axis in pixels()], dim=1)


@pytest.mark.parametrize("shape", [(5, 1, 32, 32), (3, 3, 32, 32), (1, 1, 16, 32)])
def test_shapes_stay(shape: tuple[int, ...]) -> None:
    images, masks = torch.rand(shape), torch.ones(shape[0], 1, *shape[2:])
    moved, moved_masks = affine_flip(images, masks, chance())
    assert moved.shape == images.shape
    assert moved_masks is not None
    assert moved_masks.shape == masks.shape
    assert affine_flip(images, None, chance())[1] is None


def test_masks_stay_binary_and_move_with_their_images() -> None:
    masks = torch.zeros(100, 1, SIZE, SIZE)
    masks[:, :, 12:34, 34:56] = 1
    images, moved = affine_flip(masks.clone(), masks, chance())
    assert moved is not None
    assert set(moved.unique().tolist()) == {0.0, 1.0}
    overlap = ((images > 0.5) & (moved > 0.5)).sum((1, 2, 3))
    dice = 2 * overlap / ((images > 0.5).sum((1, 2, 3)) + moved.sum((1, 2, 3)))
    assert float(dice.min()) > 0.97
    assert not torch.equal(moved, masks)


def test_each_of_many_masks_goes_where_the_image_goes() -> None:
    """Overlapping masks move as each would alone, whatever the others and the image's channels are."""
    masks = torch.zeros(30, 3, SIZE, SIZE)
    masks[:, 0, 12:34, 34:56] = 1
    masks[:, 1, 20:40, 10:44] = 1  # over a part of the first
    images = torch.rand(30, 3, SIZE, SIZE)
    moved_images, moved = affine_flip(images, masks, chance())
    assert moved is not None
    assert moved.shape == masks.shape
    assert set(moved.unique().tolist()) == {0.0, 1.0}
    assert not bool(moved[:, 2].any())
    for number in range(3):
        again, alone = affine_flip(images, masks[:, [number]], chance())
        assert torch.equal(again, moved_images)
        assert alone is not None
        assert torch.equal(alone, moved[:, [number]])
    both = affine_flip(images, (masks[:, [0]] * masks[:, [1]]), chance())[1]
    assert both is not None
    assert torch.equal(both, moved[:, [0]] * moved[:, [1]])


def test_nothing_but_flips_is_left_without_rotation_and_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    still(monkeypatch, "ROTATION", "SHIFT")
    images = torch.rand(2_000, 1, 8, 8, generator=chance(1))
    masks = (images > 0.5).float()
    moved, moved_masks = affine_flip(images, masks, chance(2))
    same, mirrored = ((moved - other).abs().amax((1, 2, 3)) < 1e-5 for other in (images, images.flip(-1)))
    assert bool((same ^ mirrored).all())
    assert int(mirrored.sum()) == pytest.approx(1_000, abs=5 * math.sqrt(500))
    assert moved_masks is not None
    assert torch.equal(moved_masks[same], masks[same])
    assert torch.equal(moved_masks[mirrored], masks[mirrored].flip(-1))


def test_rotation_reaches_ten_degrees_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    still(monkeypatch, "SHIFT")
    seen = centres(affine_flip(spot(0.6, 0.0).expand(400, 1, -1, -1), None, chance())[0])
    angles = torch.rad2deg(torch.atan2(seen[:, 1], seen[:, 0].abs()))
    assert 9.5 < float(angles.max()) < 10.2
    assert -10.2 < float(angles.min()) < -9.5
    assert seen.norm(dim=1).tolist() == pytest.approx([0.6] * 400, abs=0.01)


def test_shift_reaches_two_percent_of_the_width_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    still(monkeypatch, "ROTATION")
    seen = centres(affine_flip(spot(0.0, 0.0).expand(400, 1, -1, -1), None, chance())[0])
    widths = seen / 2
    assert 0.019 < float(widths.abs().amax()) < 0.0205
    assert bool((widths.amax(0) > 0.018).all())
    assert bool((widths.amin(0) < -0.018).all())


def test_each_image_moves_by_itself() -> None:
    moved, _ = affine_flip(spot(0.5, 0.3).expand(20, 1, -1, -1), None, chance())
    assert len(centres(moved).round(decimals=4).unique(dim=0)) == 20


def test_the_generator_alone_decides() -> None:
    images = torch.rand(4, 1, 16, 16)
    first = affine_flip(images, None, chance(1))[0]
    torch.manual_seed(77)
    assert torch.equal(affine_flip(images, None, chance(1))[0], first)
    assert not torch.equal(affine_flip(images, None, chance(2))[0], first)
