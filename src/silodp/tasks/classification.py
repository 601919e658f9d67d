"""Classification: cross-entropy; AUC, accuracy, sensitivity, specificity and F1.

Class 1 is the diseased one. With more than two classes AUC is the mean of one-against-rest, and the
others are macro means.
"""

from __future__ import annotations

from typing import Any

import torch
from monai.metrics import compute_confusion_matrix_metric, compute_roc_auc, get_confusion_matrix
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from silodp.tasks.task import Task

_CONFUSION = ("sensitivity", "specificity", "f1 score")


def _metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    classes = logits.shape[1]
    truth = one_hot(labels.long(), classes)
    predicted = logits.argmax(1)
    # Two classes: class 1 speaks for both. More: each class against the rest.
    columns = slice(1, 2) if classes == 2 else slice(None)
    guess = one_hot(predicted, classes)
    matrix = get_confusion_matrix(guess[:, columns, None], truth[:, columns, None]).sum(0)
    present = bool(truth[:, columns].any()) and not bool(truth[:, columns].all())
    result: dict[str, Any] = {
        "auc": compute_roc_auc(logits.softmax(1)[:, columns], truth[:, columns]) if present else torch.nan,
        "accuracy": (predicted == labels).float().mean(),
    }
    for metric in _CONFUSION:
        result[metric.removesuffix(" score")] = compute_confusion_matrix_metric(metric, matrix).mean()
    return {name: float(value) for name, value in result.items()}


CLASSIFICATION = Task(
    "classification",
    "auc",
    lambda labels: max(2, int(labels.max()) + 1),
    lambda logits, labels: cross_entropy(logits, labels.long()),
    _metrics,
    _metrics,
)
