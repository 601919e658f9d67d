"""Who holds which data."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from silodp.cohorts.cohort import Cohort, Examples, HospitalData
from silodp.errors import InputError
from silodp.settings import CohortSettings

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead

__all__ = ["Cohort", "Examples", "HospitalData", "load_cohort"]


def load_cohort(settings: CohortSettings, on_read: OnRead | None = None) -> Cohort:
    """The cohort that `settings` describe, checked against them.

    Args:
        settings: as in an experiment.
        on_read: told how many files of how many have been decoded, where any must be.
    """
    settings = settings.filled()
    if settings.kind == "custom":
        raise InputError(
            "cohort.kind = custom: this experiment was given its data from Python; "
            "run it with silodp.train(experiment, cohort=…)"
        )
    if settings.kind.startswith("synthetic"):
        if settings.path is not None:
            raise InputError(
                f"cohort.path = {settings.path} with cohort.kind = {settings.kind}: synthetic images "
                f"come from no file; set cohort.kind (`silodp data check {settings.path}` says which)"
            )
        return _synthetic(settings).check(settings.classes)
    from silodp.cohorts.loading import load_files

    return load_files(settings, on_read).check(settings.classes)


@lru_cache(maxsize=1)  # for runs on the same data, as in the demo
def _synthetic(settings: CohortSettings) -> Cohort:
    assert settings.hospitals is not None
    assert settings.image_size is not None
    assert settings.channels is not None
    if settings.kind == "synthetic-mri":
        from silodp.cohorts.synthetic_mri import synthetic_mri

        return synthetic_mri(
            hospitals=settings.hospitals,
            slices=settings.slices,
            image_size=settings.image_size,
            seed=settings.seed,
        )
    from silodp.cohorts.synthetic_ct import synthetic_ct

    return synthetic_ct(
        hospitals=settings.hospitals,
        slices=settings.slices,
        image_size=settings.image_size,
        channels=settings.channels,
        seed=settings.seed,
    )
