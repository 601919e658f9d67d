"""silodp: client-level differential privacy for federated medical imaging.

import silodp

experiment = silodp.Experiment.load("prostate-small")
result = silodp.train(experiment)
print(result.test["dice"], result.epsilon.hospital, result.epsilon.intermediary)
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the aliases tell type checkers that these names are public
    from silodp.clipping import ClippingRule as ClippingRule
    from silodp.cohorts import Cohort as Cohort
    from silodp.cohorts import Examples as Examples
    from silodp.cohorts import HospitalData as HospitalData
    from silodp.errors import InputError as InputError
    from silodp.experiment import Experiment as Experiment
    from silodp.inference.predictor import Predictor as Predictor
    from silodp.inference.predictor import load as load
    from silodp.intermediary import IntermediaryRule as IntermediaryRule
    from silodp.models.norm import with_norm as with_norm
    from silodp.privacy.accountants import Epsilon as Epsilon
    from silodp.runs.build import build as build
    from silodp.runs.parts import Parts as Parts
    from silodp.runs.result import Result as Result
    from silodp.runs.training import resume as resume
    from silodp.runs.training import train as train
    from silodp.server_optimizers import ServerOptimizer as ServerOptimizer
    from silodp.update_map import UpdateMap as UpdateMap

__version__ = "0.1.0"

# PyTorch then takes large tensors in large pages, where Linux has them, and spends less time on it.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_HOMES = {
    "ClippingRule": "silodp.clipping",
    "Cohort": "silodp.cohorts",
    "Epsilon": "silodp.privacy.accountants",
    "Examples": "silodp.cohorts",
    "Experiment": "silodp.experiment",
    "HospitalData": "silodp.cohorts",
    "InputError": "silodp.errors",
    "IntermediaryRule": "silodp.intermediary",
    "Parts": "silodp.runs.parts",
    "Predictor": "silodp.inference.predictor",
    "Result": "silodp.runs.result",
    "ServerOptimizer": "silodp.server_optimizers",
    "UpdateMap": "silodp.update_map",
    "build": "silodp.runs.build",
    "load": "silodp.inference.predictor",
    "resume": "silodp.runs.training",
    "train": "silodp.runs.training",
    "with_norm": "silodp.models.norm",
}
"""Where each public name is defined."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Imports a part when it is first used, so that `silodp --help` does not wait for PyTorch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'silodp' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, whether or not they have been imported."""
    return [*__all__, "__version__"]
