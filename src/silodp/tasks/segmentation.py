"""Segmentation: soft Dice loss over the batch; hard Dice, IoU and 95 % Hausdorff distance per image and mask.

An image has one mask or several, which may overlap: each is a sigmoid of its own, and losses and metrics are
means over them. The authors report soft Dice over a batch; silodp thresholds at 0.5 and averages over images.
Soft Dice over a batch ties its images together, so DP-SGD, which clips one image's gradient, takes soft Dice
per image.

MONAI, whose import takes seconds, comes in for the Hausdorff distance alone, when a trained model is tested;
loss, Dice and IoU are its figures to the bit, without a wait for the device at every image and mask.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from silodp.tasks.task import Task

SMOOTHING = 1e-5  # above and below, so that a batch without any gland has a loss and a gradient


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


def _quick_metrics(logits: Tensor, masks: Tensor) -> dict[str, float]:
    """Where there is no gland, finding none counts as 1."""
    predicted, truth = (logits > 0).float(), masks.float()
    both, sizes = (predicted * truth).sum((2, 3)), predicted.sum((2, 3)) + truth.sum((2, 3))
    empty = sizes == 0
    dice, iou = (2 * both / sizes).masked_fill(empty, 1), (both / (sizes - both)).masked_fill(empty, 1)
    result = {"dice": float(dice.mean()), "iou": float(iou.mean())}
    if dice.shape[1] > 1:
        result |= {f"dice_{number}": float(mask) for number, mask in enumerate(dice.mean(0), start=1)}
    return result


def _metrics(logits: Tensor, masks: Tensor) -> dict[str, float]:
    """Hausdorff distance in pixels; where a mask is empty on one side only it is the image's diagonal."""
    # Each mask as an image of its own, for one may be empty where another is not.
    predicted, truth = (part.float().flatten(0, 1)[:, None] for part in (logits > 0, masks))
    is_predicted, is_true = (part.flatten(1).any(1) for part in (predicted, truth))
    found = (is_predicted & is_true).nonzero()[:, 0]
    distances = torch.full((len(truth),), math.hypot(*masks.shape[-2:]))
    distances[~(is_predicted | is_true).cpu()] = 0.0
    if len(found):
        from monai.metrics import compute_hausdorff_distance

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # MONAI's own call of its own deprecated option
            measured = compute_hausdorff_distance(
                predicted[found], truth[found], include_background=True, percentile=95
            )
        distances[found.cpu()] = measured[:, 0].float().cpu()
    return _quick_metrics(logits, masks) | {"hd95": float(distances.mean())}


SEGMENTATION = Task(
    "segmentation", "dice", lambda masks: masks.shape[1], _loss, _image_losses, _metrics, _quick_metrics
)
