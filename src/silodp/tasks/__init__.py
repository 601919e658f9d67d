"""What is learnt: the loss, the metrics, the input. A task knows nothing of hospitals or privacy."""

from __future__ import annotations

from silodp.tasks.task import Task

__all__ = ["Task", "task_named"]


def task_named(name: str) -> Task:
    if name == "segmentation":
        from silodp.tasks.segmentation import SEGMENTATION

        return SEGMENTATION
    from silodp.tasks.classification import CLASSIFICATION

    return CLASSIFICATION
