"""Classification: cross-entropy; AUC, accuracy, sensitivity, specificity and F1.

Of two classes, 1 is the diseased one. With more, AUC is the mean of one-against-rest and the others are macro
means. A mean takes the classes for which its metric is defined, since a hospital's test images need not show
every class: AUC and sensitivity those among the images, F1 also those only guessed (as 0), specificity all
but one that every image has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from silodp.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

_CONFUSION = ("sensitivity", "specificity", "f1 score")


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits, labels.long())


def _image_losses(logits: Tensor, labels: Tensor) -> Tensor:
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits, labels.long(), reduction="none")


def _metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    from monai.metrics import compute_confusion_matrix_metric, get_confusion_matrix
    from torch.nn.functional import one_hot

    classes = logits.shape[1]
    truth = one_hot(labels.long(), classes)
    predicted = logits.argmax(1)
    # Two classes: class 1 speaks for both. More: each class against the rest.
    columns = [1] if classes == 2 else list(range(classes))
    guess = one_hot(predicted, classes)
    matrix = get_confusion_matrix(guess[:, columns, None], truth[:, columns, None]).sum(0)
    areas = [_auc(logits, truth[:, column], column) for column in columns]
    defined = [area for area in areas if not math.isnan(area)]
    result: dict[str, Any] = {
        "auc": sum(defined) / len(defined) if defined else math.nan,
        "accuracy": (predicted == labels).float().mean(),
    }
    for metric in _CONFUSION:
        result[metric.removesuffix(" score")] = compute_confusion_matrix_metric(metric, matrix).nanmean()
    return {name: float(value) for name, value in result.items()}


def _auc(logits: Tensor, truth: Tensor, column: int) -> float:
    """Area under the ROC curve of one class against the rest; NaN where only one of both is there.

    NaN also where an output is NaN: ranks of NaN are those of the images' order, so that AUC could be 1.
    """
    from monai.metrics import compute_roc_auc

    if len(set(truth.tolist())) < 2:
        return math.nan
    others = [other for other in range(logits.shape[1]) if other != column]
    # Log-odds rather than probabilities, which round to 1 for a network that is very sure.
    odds = logits[:, column].double() - logits[:, others].double().logsumexp(1)
    return math.nan if odds.isnan().any() else float(compute_roc_auc(odds, truth))


CLASSIFICATION = Task(
    name="classification",
    target="class",
    cohort="synthetic-ct",
    model="densenet",
    headline="auc",
    outputs=lambda labels: max(2, int(labels.max()) + 1),
    loss=_loss,
    image_losses=_image_losses,
    metrics=_metrics,
    quick_metrics=_metrics,
)
