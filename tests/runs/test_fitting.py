"""What Python passes to `train`: any object can stand for another there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import blob_cohort
from torch import nn

import silodp
from silodp.errors import InputError
from silodp.experiment import Experiment


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"model": lambda images: images},
            "model: <function .* is not a Module; give a network",
        ),
        ({"model": nn.Conv2d}, "model: <class .* is not a Module"),
        ({"model": "unet"}, "model: 'unet' is not a Module"),
        ({"cohort": [torch.zeros(3)]}, "cohort: .* is not a Cohort; make one with"),
        ({"experiment": "demo"}, "experiment: 'demo' is not a Experiment; load one with"),
        ({"experiment": None}, "experiment: None is not"),
    ],
)
def test_other_kinds_of_object_are_refused(
    given: dict[str, Any], says: str, experiment: Experiment, tmp_path: Path
) -> None:
    arguments = {"experiment": experiment, "cohort": blob_cohort()} | given
    with pytest.raises(InputError, match=says) as error:
        silodp.train(**arguments, out=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


class Pair(nn.Module):
    """Answers with two tensors where one is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)

    def forward(self, images: torch.Tensor) -> Any:
        return self.layer(images), images


def test_a_network_that_fails_in_its_own_way_is_refused_in_one_line(
    experiment: Experiment, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="model: it cannot train on 2 images") as error:
        silodp.train(experiment, cohort=blob_cohort(), model=Pair(), out=tmp_path / "run")
    assert "\n" not in str(error.value)
