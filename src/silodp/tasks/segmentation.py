"""Segmentation: soft Dice loss over the batch; hard Dice, IoU and 95 % Hausdorff distance per image and mask.

An image has one mask or several, which may overlap: each is a sigmoid of its own, and losses and metrics are
means over them. The authors report soft Dice over a batch; silodp thresholds at 0.5 and averages over images.
Soft Dice over a batch ties its images together, so DP-SGD, which clips one image's gradient, takes soft Dice
per image.
"""

from __future__ import annotations

import math
import warnings

import torch
from monai.losses import DiceLoss
from monai.metrics import compute_dice, compute_hausdorff_distance, compute_iou
from torch import Tensor

from silodp.tasks.task import Task

_dice_loss = DiceLoss(sigmoid=True, batch=True)
_dice_losses = DiceLoss(sigmoid=True, reduction="none")


def _loss(logits: Tensor, masks: Tensor) -> Tensor:
    return _dice_loss(logits, masks.to(logits.dtype))  # type: ignore[no-any-return]


def _image_losses(logits: Tensor, masks: Tensor) -> Tensor:
    return _dice_losses(logits, masks.to(logits.dtype)).flatten(1).mean(1)  # type: ignore[no-any-return]


def _quick_metrics(logits: Tensor, masks: Tensor) -> dict[str, float]:
    predicted, truth = (logits > 0).float(), masks.float()
    # ignore_empty would leave out masks without gland; with it off, finding none there counts as 1.
    dice = compute_dice(predicted, truth, ignore_empty=False)
    iou = compute_iou(predicted, truth, ignore_empty=False)
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
