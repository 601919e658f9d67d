"""Small things that many tests need. One thread: tests then run the same beside busy neighbours."""

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from silodp import Cohort, Experiment

torch.set_num_threads(1)


def blob_cohort(hospitals: int = 3, images: int = 20, size: int = 16) -> Cohort:
    """Noisy pictures with a bright square, and its mask: quick to make and to learn."""
    generator = torch.Generator().manual_seed(5)
    members = {}
    for number in range(hospitals):
        masks = torch.zeros(images, 1, size, size)
        for mask in masks:
            top, left = torch.randint(0, size - 6, (2,), generator=generator).tolist()
            mask[0, top : top + 6, left : left + 6] = 1
        noise = torch.randn(masks.shape, generator=generator)
        members[f"hospital-{number}"] = (masks + (0.3 + 0.1 * number) * noise, masks)
    return Cohort.from_tensors(members)


@pytest.fixture
def cohort() -> Cohort:
    return blob_cohort()


@pytest.fixture
def experiment() -> Experiment:
    """A private segmentation that trains in a moment."""
    return Experiment.build(
        {
            "name": "tiny",
            "rounds": 3,
            "model": {"features": 2},
            "local": {"learning_rate": 0.01, "batch_size": 4},
            "intermediaries": {"rule": "fixed", "count": 2},
            "clipping": {"bound": 0.5},
        }
    )


class Killed(Exception):
    """Stands for the end of the process."""


def kill_after(number: int) -> Callable[[dict[str, Any]], None]:
    """For `on_round`: the run ends when this round has been recorded."""

    def on_round(record: dict[str, Any]) -> None:
        if record["round"] == number:
            raise Killed

    return on_round
