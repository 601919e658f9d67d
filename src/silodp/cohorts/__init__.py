"""Who holds which data."""

from __future__ import annotations

from functools import lru_cache

from silodp.cohorts.cohort import Cohort, Examples, HospitalData
from silodp.errors import InputError
from silodp.experiment import CohortSettings

__all__ = ["Cohort", "Examples", "HospitalData", "load_cohort"]


@lru_cache(maxsize=1)
def load_cohort(settings: CohortSettings) -> Cohort:
    """The cohort that `settings` describe; the last one is remembered for runs on the same data."""
    if settings.kind == "synthetic-mri":
        from silodp.cohorts.synthetic_mri import synthetic_mri

        return synthetic_mri(
            hospitals=settings.hospitals or 6,
            slices=settings.slices,
            image_size=settings.image_size,
            seed=settings.seed,
        )
    if settings.kind == "synthetic-ct":
        from silodp.cohorts.synthetic_ct import synthetic_ct

        return synthetic_ct(
            hospitals=settings.hospitals or 20,
            slices=settings.slices,
            image_size=settings.image_size,
            channels=settings.channels,
            seed=settings.seed,
        )
    raise InputError(
        "cohort.kind = custom: this experiment was given its data from Python; "
        "run it with silodp.train(experiment, cohort=…)"
    )
