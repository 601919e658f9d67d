"""silodp: client-level differential privacy for federated medical imaging.

import silodp

experiment = silodp.Experiment.load("prostate-small")
result = silodp.train(experiment)
print(result.test["dice"], result.epsilon.hospital, result.epsilon.intermediary)
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silodp.clipping import ClippingRule
    from silodp.cohorts import Cohort, Examples, HospitalData
    from silodp.errors import InputError
    from silodp.experiment import Experiment
    from silodp.inference.predictor import Predictor, load
    from silodp.intermediary import IntermediaryRule
    from silodp.models.norm import with_norm
    from silodp.privacy.accountants import Epsilon
    from silodp.runs.build import build
    from silodp.runs.parts import Parts
    from silodp.runs.result import Result
    from silodp.runs.training import resume, train
    from silodp.server_optimizers import ServerOptimizer
    from silodp.update_map import UpdateMap

__version__ = "0.1.0"

# PyTorch then takes large tensors in large pages, where Linux has them, and spends less time on it.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__all__ = [
    "ClippingRule",
    "Cohort",
    "Epsilon",
    "Examples",
    "Experiment",
    "HospitalData",
    "InputError",
    "IntermediaryRule",
    "Parts",
    "Predictor",
    "Result",
    "ServerOptimizer",
    "UpdateMap",
    "build",
    "load",
    "resume",
    "train",
    "with_norm",
]

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


def __getattr__(name: str) -> Any:
    """Imports a part when it is first used, so that `silodp --help` does not wait for PyTorch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'silodp' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, whether or not they have been imported."""
    return [*__all__, "__version__"]
