"""Segmentation: figures that can be counted on squared paper."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.losses import DiceLoss
from monai.metrics import DiceMetric, HausdorffDistanceMetric, MeanIoU
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
DIAGONAL = SIZE * math.sqrt(2)


def test_it_is_found_by_name() -> None:
    assert task_named("segmentation") is SEGMENTATION
    assert SEGMENTATION.headline == "dice"
    assert [SEGMENTATION.outputs(torch.zeros(4, masks, 8, 8)) for masks in (1, 3)] == [1, 3]


@pytest.mark.parametrize(
    ("metrics", "names"),
    [(SEGMENTATION.metrics, ["dice", "iou", "hd95"]), (SEGMENTATION.quick_metrics, ["dice", "iou"])],
    ids=["all", "quick"],
)
def test_half_an_overlap(metrics: Callable[[Tensor, Tensor], dict[str, float]], names: list[str]) -> None:
    # Two 4×4 squares share 4×2: Dice 2·8/32, IoU 8/24; one is the other moved by 2.
    expected = {"dice": 1 / 2, "iou": 1 / 3, "hd95": 2}
    seen = metrics(sure(square(2, 2, 4)), square(2, 4, 4))
    assert seen == pytest.approx({name: expected[name] for name in names})


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
@pytest.mark.parametrize("down", [False, True])
def test_hausdorff_of_shifted_squares_is_the_shift(shift: int, down: bool) -> None:
    # A quarter of the outline lies `shift` pixels from the other square's: more than the 5 % left out.
    moved = square(4 + shift * down, 4 + shift * (not down), 9)
    assert SEGMENTATION.metrics(sure(square(4, 4, 9)), moved)["hd95"] == pytest.approx(shift)


def test_masks_may_be_bytes() -> None:
    logits, masks = sure(square(2, 2, 4)), square(2, 4, 4)
    assert SEGMENTATION.metrics(logits, masks.byte()) == SEGMENTATION.metrics(logits, masks)
    torch.testing.assert_close(SEGMENTATION.loss(logits, masks.byte()), SEGMENTATION.loss(logits, masks))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), masks=st.integers(1, 3), share=st.sampled_from([0.0, 0.1, 0.6, 1.0]))
def test_loss_and_gradient_are_monais(seed: int, masks: int, share: float) -> None:
    chance = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, masks, 8, 8, generator=chance).requires_grad_()
    truth = (torch.rand(4, masks, 8, 8, generator=chance) < share).float()
    for ours, theirs in (
        (SEGMENTATION.loss(logits, truth), DiceLoss(sigmoid=True, batch=True)(logits, truth)),
        (
            SEGMENTATION.image_losses(logits, truth),
            DiceLoss(sigmoid=True, reduction="none")(logits, truth).flatten(1).mean(1),
        ),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        gradients = [torch.autograd.grad(loss.sum(), logits)[0] for loss in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)


def test_the_loss_of_a_sure_and_right_network_is_nothing() -> None:
    mask = square(3, 3, 5)
    assert float(SEGMENTATION.loss(1e4 * sure(mask) * 1e3, mask)) == pytest.approx(0, abs=1e-4)
    assert float(SEGMENTATION.loss(-1e4 * sure(mask) * 1e3, mask)) == pytest.approx(1, abs=1e-4)


def test_the_loss_of_a_batch_without_gland_has_a_gradient() -> None:
    logits = torch.zeros(2, 1, 8, 8, requires_grad=True)
    SEGMENTATION.loss(logits, torch.zeros(2, 1, 8, 8)).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def image(*masks: Tensor) -> Tensor:
    """Masks of one image, as its channels."""
    return torch.cat(masks, dim=1)


def test_masks_that_overlap_by_hand() -> None:
    # The masks overlap each other in truth and prediction alike. Mask 1: half an overlap, then found wholly.
    # Mask 2: found wholly, then seen where it is not. Mask 3: a ninth of a square found, then nothing.
    predicted = torch.cat(
        [
            image(square(2, 2, 4), square(0, 0, 9), square(3, 3, 1)),
            image(square(0, 0, 9), square(1, 1, 5), EMPTY),
        ]
    )
    masks = torch.cat(
        [
            image(square(2, 4, 4), square(0, 0, 9), square(3, 3, 3)),
            image(square(0, 0, 9), EMPTY, EMPTY),
        ]
    )
    seen = SEGMENTATION.metrics(sure(predicted), masks)
    dice = [(1 / 2 + 1) / 2, (1 + 0) / 2, (2 / 10 + 1) / 2]
    iou = [(1 / 3 + 1) / 2, (1 + 0) / 2, (1 / 9 + 1) / 2]
    # Of the 4 × 4 squares more than 5 % of the outline lies 2 apart. Of the eight outline pixels of the 3 × 3
    # square the farthest from (3, 3) is √8 away, the next √5; 95 % of the way from first to last is 6.65.
    hd95 = [(2 + 0) / 2, (0 + DIAGONAL) / 2, (math.sqrt(5) + 0.65 * (math.sqrt(8) - math.sqrt(5)) + 0) / 2]
    single = {f"dice_{number}": value for number, value in enumerate(dice, start=1)}
    means = {"dice": sum(dice) / 3, "iou": sum(iou) / 3, "hd95": sum(hd95) / 3}
    assert seen == pytest.approx(means | single, rel=1e-5)
    quick = SEGMENTATION.quick_metrics(sure(predicted), masks)
    assert quick == pytest.approx({name: value for name, value in seen.items() if name != "hd95"})


@pytest.mark.parametrize("others", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("found", "truth", "distance"),
    [
        (EMPTY, EMPTY, 0),
        (EMPTY, square(2, 2, 4), DIAGONAL),
        (square(2, 2, 4), EMPTY, DIAGONAL),
        (square(4, 4, 9), square(4, 7, 9), 3),
    ],
)
def test_hausdorff_of_one_mask_leaves_the_others_alone(
    others: int, found: Tensor, truth: Tensor, distance: float
) -> None:
    right = [square(1, 1, 3 + number) for number in range(others)]
    seen = SEGMENTATION.metrics(sure(image(*right, found)), image(*right, truth))
    assert seen["hd95"] == pytest.approx(distance / (others + 1))
    again = SEGMENTATION.metrics(sure(image(found, *right)), image(truth, *right))
    assert again["hd95"] == pytest.approx(distance / (others + 1))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:the (prediction|ground truth):UserWarning")
@settings(max_examples=25, deadline=None)
@given(images=st.integers(1, 3), masks=st.integers(2, 4), seed=st.integers(0, 10_000))
def test_figures_are_monais_mask_by_mask(images: int, masks: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (images, masks, 12, 10)
    # Some masks are empty, some sparse, some dense.
    thresholds = torch.tensor([9.0, 1.5, 0.0])[
        torch.randint(0, 3, (2, *shape[:2], 1, 1), generator=generator)
    ]
    logits = torch.randn(shape, generator=generator) - thresholds[0]
    truth = (torch.randn(shape, generator=generator) > thresholds[1]).float()
    predicted = (logits > 0).float()
    seen = SEGMENTATION.metrics(logits, truth)
    dices, ious, distances = [], [], []
    for number in range(masks):
        one = predicted[:, [number]], truth[:, [number]]
        dices.append(float(DiceMetric(ignore_empty=False, reduction="none")(*one).mean()))
        ious.append(float(MeanIoU(ignore_empty=False, reduction="none")(*one).mean()))
        for found, true in zip(*one, strict=True):
            if found.any() and true.any():
                metric = HausdorffDistanceMetric(include_background=True, percentile=95, reduction="none")
                distances.append(float(metric(found[None], true[None])))
            else:
                distances.append(math.hypot(12, 10) if found.any() or true.any() else 0.0)
        assert seen[f"dice_{number + 1}"] == pytest.approx(dices[-1], abs=1e-6)
    assert seen["dice"] == pytest.approx(sum(dices) / masks, abs=1e-6)
    assert seen["iou"] == pytest.approx(sum(ious) / masks, abs=1e-6)
    assert seen["hd95"] == pytest.approx(sum(distances) / len(distances), rel=1e-5)


def unlike_masks() -> tuple[Tensor, Tensor]:
    """Logits and masks of two images; three masks of very unlike sizes, one empty in one image."""
    logits = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    masks = torch.zeros(2, 3, 8, 8)
    masks[:, 0, :7, :7] = 1
    masks[0, 1, 2:3, 2:4] = 1
    masks[:, 2, 4:, 2:] = 1  # over both others
    return logits, masks


def test_the_loss_of_many_masks_is_the_mean_of_soft_dice_over_the_batch() -> None:
    logits, masks = unlike_masks()
    probable = 1 / (1 + torch.exp(-logits))
    dice = [
        2 * (probable[:, k] * masks[:, k]).sum() / (probable[:, k].sum() + masks[:, k].sum())
        for k in range(3)
    ]
    assert float(SEGMENTATION.loss(logits, masks)) == pytest.approx(1 - float(sum(dice)) / 3, abs=1e-5)


def test_the_losses_of_images_are_the_means_of_their_masks_alone() -> None:
    logits, masks = unlike_masks()
    probable = 1 / (1 + torch.exp(-logits))
    overlap, total = (probable * masks).sum((2, 3)), (probable + masks).sum((2, 3))
    expected = (1 - 2 * overlap / total).mean(1)
    seen = SEGMENTATION.image_losses(logits, masks.byte())
    assert seen.shape == (2,)
    assert seen.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    logits.requires_grad_()
    SEGMENTATION.image_losses(logits, masks)[0].backward()
    assert logits.grad is not None
    assert bool(logits.grad[0].any())
    assert not bool(logits.grad[1].any())


def test_masks_that_lie_over_each_other_can_all_be_right() -> None:
    """A softmax over the masks could not say so."""
    masks = image(square(2, 2, 9), square(2, 2, 9), square(4, 4, 3))
    assert float(SEGMENTATION.loss(1e7 * sure(masks), masks)) == pytest.approx(0, abs=1e-4)
    assert SEGMENTATION.metrics(sure(masks), masks)["dice"] == 1
