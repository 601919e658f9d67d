"""The interface of a task: plain functions in a frozen record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


Measure = Callable[["Tensor"], dict[str, "Tensor"]]


@dataclass(frozen=True)
class Task:
    """A loss and the metrics that go with it.

    Attributes:
        name: as in `experiment.task`.
        target: whether an image has a class or masks; networks have an output for each.
        cohort: default kind of cohort.
        model: default kind of model.
        headline: the metric by which the best round is chosen and that progress shows; larger is better.
        outputs: how many output channels the network needs, from the training targets.
        loss: mean loss of a batch from (logits, targets).
        image_losses: (n,) losses from (logits, targets), each of its image alone, so that the gradient of an
            image can be clipped.
        measure: from (logits, targets) of n images, on the CPU, a function of (r, n) weights: every metric by
            name, (r,) in double precision, where image i counts as often as its weight says; NaN where it is
            not defined.
        quick_metrics: metrics of (logits, targets) that are cheap enough for every round.
    """

    name: str
    target: Literal["class", "mask"]
    cohort: str
    model: str
    headline: str
    outputs: Callable[[Tensor], int]
    loss: Callable[[Tensor, Tensor], Tensor]
    image_losses: Callable[[Tensor, Tensor], Tensor]
    measure: Callable[[Tensor, Tensor], Measure]
    quick_metrics: Callable[[Tensor, Tensor], dict[str, float]]

    def metric_names(self, outputs: int, *, thorough: bool) -> set[str]:
        """Names of all metrics of a network with so many outputs, or of the quick ones."""
        import torch

        mask = self.target == "mask"
        logits = torch.zeros((1, outputs, 1, 1) if mask else (1, outputs))
        targets = logits if mask else torch.zeros(1, dtype=torch.int64)
        return set((self.metrics if thorough else self.quick_metrics)(logits, targets))

    def metrics(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        """Every metric, each image counted once."""
        once = logits.new_ones(1, len(targets)).double()
        return {name: float(value) for name, value in self.measure(logits, targets)(once).items()}
