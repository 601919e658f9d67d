"""Warnings before a run trains."""

from __future__ import annotations

from collections.abc import Sequence

from silodp.cohorts import HospitalData
from silodp.experiment import delta_by_rule

LARGE_DELTA = 0.1  # the paper's rule gives it to ten hospitals and fewer


def about_masks(hospitals: Sequence[HospitalData]) -> list[str]:
    """A warning if all masks of the training images are empty."""
    targets = [hospital.train.targets for hospital in hospitals]
    if targets[0].ndim == 4 and not any(bool(masks.any()) for masks in targets):
        return [ALL_EMPTY]
    return []


ALL_EMPTY = "all masks of the training images are empty: a network learns to mark nothing; look at the masks"


def about_hospitals(count: int) -> list[str]:
    """A warning if only one hospital trains."""
    if count > 1:
        return []
    return ["only one hospital trains: nothing is federated, and its update hides behind the noise alone"]


def about_delta(hospitals: int) -> list[str]:
    """A warning if the paper's rule gives a large δ."""
    delta = delta_by_rule(hospitals)
    if delta < LARGE_DELTA:
        return []
    return [
        f"privacy.delta = {delta:g} by the paper's rule for {hospitals} hospitals: with that probability a "
        "hospital may be exposed outright, whatever ε is; --set privacy.delta=1e-5 promises more"
    ]
