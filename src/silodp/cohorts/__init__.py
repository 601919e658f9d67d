"""Who holds which data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from silodp.cohorts import sources, synthetic_ct, synthetic_mri  # noqa: F401  so that their kinds are known
from silodp.cohorts.kinds import CohortSettings

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead
    from silodp.cohorts.cohort import Cohort, Examples, HospitalData

__all__ = ["Cohort", "CohortSettings", "Examples", "HospitalData", "load_cohort"]


def load_cohort(settings: CohortSettings, on_read: OnRead | None = None) -> Cohort:
    """The cohort that `settings` describe, checked against them.

    Args:
        settings: as in an experiment.
        on_read: told how many files of how many have been decoded, where any must be.
    """
    return settings.load(on_read).check(settings.classes)


def __getattr__(name: str) -> Any:
    """Imports PyTorch only for those who hold images, not for those who read settings."""
    if name in ("Cohort", "Examples", "HospitalData"):
        from silodp.cohorts import cohort

        return getattr(cohort, name)
    raise AttributeError(f"module 'silodp.cohorts' has no attribute {name!r}")
