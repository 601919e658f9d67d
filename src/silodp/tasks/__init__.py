"""Tasks: loss, metrics and outputs of the network. They know nothing of hospitals or privacy."""

from __future__ import annotations

from silodp.tasks.classification import CLASSIFICATION
from silodp.tasks.segmentation import SEGMENTATION
from silodp.tasks.task import Task

__all__ = ["SEGMENTATION", "TASKS", "Task", "known_task", "task_named"]

TASKS = {task.name: task for task in (SEGMENTATION, CLASSIFICATION)}
"""By name, as in `experiment.task`; add your own here."""


def known_task(name: str) -> str:
    if name not in TASKS:
        raise ValueError(f"choose one of {', '.join(TASKS)}, or import what defines it first")
    return name


def task_named(name: str) -> Task:
    return TASKS[known_task(name)]
