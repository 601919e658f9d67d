"""The shape of a task: plain functions in a frozen record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Task:
    """A loss and the metrics that go with it.

    Attributes:
        name: as in `experiment.task`.
        target: what an image has: a class, or masks; networks have one output for each.
        cohort: the kind where none is named.
        model: the kind where none is named.
        headline: the metric by which the best round is chosen and that progress shows; larger is better.
        outputs: how many output channels the network needs, from the training targets.
        loss: mean loss of a batch from (logits, targets).
        image_losses: (n,) losses of the images from (logits, targets), each of its image alone: where one
            image's gradient is clipped, no other image may be in it.
        metrics: every metric of a set of images from (logits, targets); NaN where it is not defined.
        quick_metrics: those that are cheap enough for every round.
    """

    name: str
    target: Literal["class", "mask"]
    cohort: str
    model: str
    headline: str
    outputs: Callable[[Tensor], int]
    loss: Callable[[Tensor, Tensor], Tensor]
    image_losses: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Tensor, Tensor], dict[str, float]]
    quick_metrics: Callable[[Tensor, Tensor], dict[str, float]]
