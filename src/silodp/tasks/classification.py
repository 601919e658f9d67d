"""Classification: cross-entropy; AUC, accuracy, sensitivity, specificity and F1.

Of two classes, 1 is the diseased one. With more, AUC is the mean over classes against the rest, and the
others are macro means. Means are over the classes for which the metric is defined, since a hospital's test
images need not have every class: for AUC and sensitivity those among the images, for F1 also those that are
only predicted (as 0), for specificity all but a class that every image has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from silodp.tasks.task import Measure, Task

if TYPE_CHECKING:
    from torch import Tensor


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits, labels.long())


def _image_losses(logits: Tensor, labels: Tensor) -> Tensor:
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits, labels.long(), reduction="none")


def _measure(logits: Tensor, labels: Tensor) -> Measure:
    import torch
    from torch.nn.functional import one_hot

    classes = logits.shape[1]
    truth = one_hot(labels.long(), classes).double()
    guess = one_hot(logits.argmax(1), classes).double()
    right = (logits.argmax(1) == labels).double()
    # Two classes: class 1 speaks for both. More: each class against the rest.
    columns = [1] if classes == 2 else list(range(classes))
    truth, guess = truth[:, columns], guess[:, columns]
    areas = [_auc(_odds(logits, column), truth[:, place]) for place, column in enumerate(columns)]

    def weighted(weights: Tensor) -> dict[str, Tensor]:
        found, missed = weights @ (truth * guess), weights @ (truth * (1 - guess))
        false, dismissed = weights @ ((1 - truth) * guess), weights @ ((1 - truth) * (1 - guess))
        return {
            "auc": torch.stack([area(weights) for area in areas]).nanmean(0),
            "accuracy": weights @ right / weights.sum(1),
            "sensitivity": (found / (found + missed)).nanmean(1),
            "specificity": (dismissed / (dismissed + false)).nanmean(1),
            "f1": (2 * found / (2 * found + missed + false)).nanmean(1),
        }

    return weighted


def _odds(logits: Tensor, column: int) -> Tensor:
    """(n,) log-odds of a class against the rest; probabilities of a confident network would round to 1."""
    others = [other for other in range(logits.shape[1]) if other != column]
    return logits[:, column].double() - logits[:, others].double().logsumexp(1)


def _auc(scores: Tensor, truth: Tensor) -> Callable[[Tensor], Tensor]:
    """Area under the ROC curve: the probability that a positive image scores above a negative one.

    NaN where either class is missing or a score is NaN, since NaN would be ranked by position.
    """
    import torch

    unknown = bool(scores.isnan().any())
    levels, level = torch.unique(scores, return_inverse=True)

    def weighted(weights: Tensor) -> Tensor:
        positive, negative = weights * truth, weights * (1 - truth)
        here = weights.new_zeros(len(weights), len(levels)).index_add_(1, level, negative)
        beaten = (here.cumsum(1) - here / 2)[:, level]
        area = (positive * beaten).sum(1) / (positive.sum(1) * negative.sum(1))
        return area.fill_(math.nan) if unknown else area

    return weighted


def _metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    return CLASSIFICATION.metrics(logits, labels)


CLASSIFICATION = Task(
    name="classification",
    target="class",
    cohort="synthetic-ct",
    model="densenet",
    headline="auc",
    outputs=lambda labels: max(2, int(labels.max()) + 1),
    loss=_loss,
    image_losses=_image_losses,
    measure=_measure,
    quick_metrics=_metrics,
)
