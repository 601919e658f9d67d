"""Segmentation: soft Dice loss over the batch; hard Dice, IoU and 95 % Hausdorff distance per image and mask.

An image has one mask or several, which may overlap: each is a sigmoid of its own, and losses and metrics are
means over them. The authors report soft Dice over a batch; silodp thresholds at 0.5 and averages over images.
Soft Dice over a batch ties its images together, so DP-SGD, which clips one image's gradient, takes soft Dice
per image.

Loss, Dice and IoU equal MONAI's to the bit, and the Hausdorff distance agrees; but importing MONAI takes
seconds, and its Hausdorff distance is several times slower on small images.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silodp.tasks.task import Measure, Task

if TYPE_CHECKING:
    from torch import Tensor

SMOOTHING = 1e-5  # of numerator and denominator, so that a batch without any mask has a loss and a gradient


def _loss(logits: Tensor, masks: Tensor) -> Tensor:
    """The mean over masks of one minus soft Dice over batch and pixels: a scalar."""
    return _one_minus_soft_dice(logits, masks, (0, 2, 3)).mean()


def _image_losses(logits: Tensor, masks: Tensor) -> Tensor:
    """The mean over masks of one minus soft Dice over pixels: (images,)."""
    return _one_minus_soft_dice(logits, masks, (2, 3)).mean(1)


def _one_minus_soft_dice(logits: Tensor, masks: Tensor, over: tuple[int, ...]) -> Tensor:
    probable, truth = logits.sigmoid(), masks.to(logits.dtype)
    hit = (probable * truth).sum(over)
    false, missed = probable.sum(over) - hit, truth.sum(over) - hit
    return 1 - (2 * hit + SMOOTHING) / (2 * (hit + false * 0.5 + missed * 0.5) + SMOOTHING)


def _overlaps(logits: Tensor, masks: Tensor) -> dict[str, Tensor]:
    """(images,) Dice and IoU, means over masks, and each Dice of several masks; 1 where both are empty."""
    predicted, truth = (logits > 0).float(), masks.float()
    both = (predicted * truth).sum((2, 3)).double()
    sizes = (predicted.sum((2, 3)) + truth.sum((2, 3))).double()
    empty = sizes == 0
    dice, iou = (2 * both / sizes).masked_fill(empty, 1), (both / (sizes - both)).masked_fill(empty, 1)
    result = {"dice": dice.mean(1), "iou": iou.mean(1)}
    if dice.shape[1] > 1:
        result |= {f"dice_{number}": mask for number, mask in enumerate(dice.unbind(1), start=1)}
    return result


def _quick_metrics(logits: Tensor, masks: Tensor) -> dict[str, float]:
    return {name: float(value.mean()) for name, value in _overlaps(logits, masks).items()}


def _measure(logits: Tensor, masks: Tensor) -> Measure:
    """All metrics; the Hausdorff distance is in pixels, the image's diagonal if one mask alone is empty."""
    predicted, truth = ((part > 0).flatten(0, 1).cpu().numpy() for part in (logits, masks))
    distances = [hausdorff_95(*pair) for pair in zip(predicted, truth, strict=True)]
    of_images = _overlaps(logits, masks)
    of_images["hd95"] = of_images["dice"].new_tensor(distances).reshape(masks.shape[:2]).mean(1)

    def weighted(weights: Tensor) -> dict[str, Tensor]:
        total = weights.sum(1)
        return {name: weights @ value / total for name, value in of_images.items()}

    return weighted


def hausdorff_95(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """The 95th percentile of the distances, in pixels, from either (h, w) mask's outline to the other's.

    The outline is what an erosion by a cross takes away. Two empty masks have distance 0; one that is empty
    alone has the image's diagonal.
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt

    if not (first.any() and second.any()):
        return math.hypot(*first.shape) if first.any() or second.any() else 0.0
    outlines = [mask ^ binary_erosion(mask) for mask in (first, second)]
    ways = [distance_transform_edt(~outline) for outline in outlines]
    return max(float(np.quantile(ways[1 - side][outlines[side]], 0.95)) for side in (0, 1))


SEGMENTATION = Task(
    name="segmentation",
    target="mask",
    cohort="synthetic-mri",
    model="unet",
    headline="dice",
    outputs=lambda masks: masks.shape[1],
    loss=_loss,
    image_losses=_image_losses,
    measure=_measure,
    quick_metrics=_quick_metrics,
)
