"""A hospital's own images, in the form that an experiment asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silodp.deploy.config import SiteSettings
from silodp.errors import InputError

if TYPE_CHECKING:
    from silodp.cohorts.cohort import Cohort, HospitalData
    from silodp.experiment import Experiment


def loader(
    settings: SiteSettings, folder: Path, data: Path | None = None
) -> Callable[[Experiment], HospitalData]:
    """Makes the function that reads a site's images for an experiment.

    Args:
        settings: of the site.
        folder: of site.toml.
        data: replaces the path in site.toml.
    """

    def load(experiment: Experiment) -> HospitalData:
        given = settings.cohort.given(folder, data)
        for name in ("classes", "image_size"):  # public, and the same for all hospitals
            if (value := getattr(experiment.cohort, name, None)) is not None:
                given[name] = value
        return _select_hospital(_load(given), settings.cohort.hospital)

    return load


def _load(given: dict[str, Any]) -> Cohort:
    """The cohort in the files, as one hospital where they name none."""
    from silodp.cohorts import CohortSettings, load_cohort

    if "path" not in given and "kind" not in given:
        raise InputError("cohort.path: missing; give --data PATH, or set it in site.toml")
    if "kind" in given:
        settings = CohortSettings.of(**given)
    else:
        from silodp.cohorts.inspection import recognise

        settings, _, _ = recognise(given)
    cohort = load_cohort(settings)
    dealt = cohort.about.get("simulated") and not {"partition", "hospitals"} & given.keys()
    return load_cohort(settings.model_copy(update={"hospitals": 1})) if dealt else cohort


def _select_hospital(cohort: Cohort, name: str | None) -> HospitalData:
    names = [hospital.name for hospital in cohort.hospitals]
    if name is None and len(names) > 1:
        raise InputError(
            f"cohort.hospital: the files name {len(names)} hospitals ({', '.join(names[:6])}); set it to "
            "the one that this site is"
        )
    for hospital in cohort.hospitals:
        if name in (None, hospital.name):
            return hospital
    raise InputError(f"cohort.hospital = {name}: the files name {', '.join(names[:6])}; choose one of these")
