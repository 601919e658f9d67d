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
        ({"model": lambda images: images}, "model: <function .* is not a Module; give a network"),
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
