"""Segmentation: figures that can be counted on squared paper."""

import math

import pytest
import torch
from torch import Tensor

from silodp.tasks import task_named
from silodp.tasks.segmentation import SEGMENTATION

SIZE = 20


def square(top: int, left: int, side: int) -> Tensor:
    mask = torch.zeros(1, 1, SIZE, SIZE)
    mask[..., top : top + side, left : left + side] = 1
    return mask


def sure(mask: Tensor) -> Tensor:
    """Logits that say just this mask, however faintly."""
    return torch.where(mask > 0, 1e-3, -1e-3)


EMPTY = torch.zeros(1, 1, SIZE, SIZE)


def test_it_is_found_by_name() -> None:
    assert task_named("segmentation") is SEGMENTATION
    assert SEGMENTATION.headline == "dice"
    assert SEGMENTATION.outputs(torch.zeros(4, 1, 8, 8)) == 1


@pytest.mark.parametrize("metrics", [SEGMENTATION.metrics, SEGMENTATION.quick_metrics])
def test_half_an_overlap(metrics: object) -> None:
    # Two 4×4 squares share 4×2: Dice 2·8/32, IoU 8/24.
    seen = metrics(sure(square(2, 2, 4)), square(2, 4, 4))  # type: ignore[operator]
    assert seen["dice"] == pytest.approx(1 / 2)
    assert seen["iou"] == pytest.approx(1 / 3)


def test_quick_metrics_are_some_of_all() -> None:
    logits, masks = sure(square(2, 2, 4)), square(2, 4, 4)
    quick, everything = SEGMENTATION.quick_metrics(logits, masks), SEGMENTATION.metrics(logits, masks)
    assert set(everything) == {"dice", "iou", "hd95"}
    assert set(quick) == {"dice", "iou"}
    assert quick == {name: everything[name] for name in quick}


def test_each_image_counts_the_same_however_large_its_gland() -> None:
    logits = torch.cat([sure(square(0, 0, 16)), sure(square(2, 2, 4))])
    masks = torch.cat([square(0, 0, 16), square(2, 4, 4)])
    seen = SEGMENTATION.metrics(logits, masks)
    assert seen["dice"] == pytest.approx((1 + 1 / 2) / 2)
    assert seen["iou"] == pytest.approx((1 + 1 / 3) / 2)


def test_a_gland_that_is_not_there_and_not_found_is_right() -> None:
    assert SEGMENTATION.metrics(sure(EMPTY), EMPTY) == {"dice": 1.0, "iou": 1.0, "hd95": 0.0}


@pytest.mark.parametrize(("found", "truth"), [(square(2, 2, 4), EMPTY), (EMPTY, square(2, 2, 4))])
def test_a_gland_seen_on_one_side_only_is_wrong(found: Tensor, truth: Tensor) -> None:
    seen = SEGMENTATION.metrics(sure(found), truth)
    assert seen["dice"] == pytest.approx(0)
    assert seen["iou"] == pytest.approx(0)
    assert seen["hd95"] == pytest.approx(SIZE * math.sqrt(2))


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
@pytest.mark.parametrize("down", [False, True])
def test_hausdorff_of_shifted_squares_is_the_shift(shift: int, down: bool) -> None:
    # A quarter of the outline lies `shift` pixels from the other square's: more than the 5 % left out.
    moved = square(4 + shift * down, 4 + shift * (not down), 9)
    assert SEGMENTATION.metrics(sure(square(4, 4, 9)), moved)["hd95"] == pytest.approx(shift)


def test_hausdorff_is_averaged_over_images() -> None:
    logits = torch.cat([sure(square(4, 4, 9)), sure(square(4, 4, 9)), sure(EMPTY), sure(EMPTY)])
    masks = torch.cat([square(4, 7, 9), square(4, 4, 9), EMPTY, square(0, 0, 3)])
    expected = (3 + 0 + 0 + SIZE * math.sqrt(2)) / 4
    assert SEGMENTATION.metrics(logits, masks)["hd95"] == pytest.approx(expected)


def test_masks_may_be_bytes() -> None:
    logits, masks = sure(square(2, 2, 4)), square(2, 4, 4)
    assert SEGMENTATION.metrics(logits, masks.byte()) == SEGMENTATION.metrics(logits, masks)
    torch.testing.assert_close(SEGMENTATION.loss(logits, masks.byte()), SEGMENTATION.loss(logits, masks))


def test_the_loss_is_soft_dice_over_the_whole_batch() -> None:
    logits = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    masks = torch.zeros(3, 1, 8, 8)
    masks[0, :, :6, :6] = 1
    masks[1, :, 2:3, 2:4] = 1
    probable = 1 / (1 + torch.exp(-logits))
    dice = 2 * (probable * masks).sum() / (probable.sum() + masks.sum())
    assert float(SEGMENTATION.loss(logits, masks)) == pytest.approx(1 - float(dice), abs=1e-5)


def test_the_loss_of_a_sure_and_right_network_is_nothing() -> None:
    mask = square(3, 3, 5)
    assert float(SEGMENTATION.loss(1e4 * sure(mask) * 1e3, mask)) == pytest.approx(0, abs=1e-4)
    assert float(SEGMENTATION.loss(-1e4 * sure(mask) * 1e3, mask)) == pytest.approx(1, abs=1e-4)


def test_the_loss_of_a_batch_without_gland_has_a_gradient() -> None:
    logits = torch.zeros(2, 1, 8, 8, requires_grad=True)
    SEGMENTATION.loss(logits, torch.zeros(2, 1, 8, 8)).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
