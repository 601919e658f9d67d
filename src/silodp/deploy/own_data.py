"""A hospital's own images, in the form that an experiment asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silodp.deploy.config import SiteSettings
from silodp.errors import InputError

if TYPE_CHECKING:
    from silodp.cohorts import CohortSettings
    from silodp.cohorts.catalogue import OnRead
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
        own = _select_hospital(_load(given), settings.cohort.hospital)
        _refuse_unclear_numbers(own.classes, own.train.targets.ndim == 1, given.get("classes"))
        return own

    return load


def _refuse_unclear_numbers(names: Sequence[str], are_classes: bool, agreed: int | None) -> None:
    """Refuses classes of which other hospitals may have others, so that their numbers would differ there."""
    from silodp.cohorts.cohort import all_numbers

    if not are_classes or not names:
        return
    way_out = "label every image with the number that all hospitals have agreed on for its class"
    if all_numbers(names):
        if agreed is None and list(names) != list(map(str, range(len(names)))):
            raise InputError(
                f"cohort.classes: the labels are {', '.join(names[:6])}; the experiment must set how many "
                "classes there are, so that they are taken as they are"
            )
    elif agreed is not None and len(names) < agreed:
        raise InputError(
            f"cohort.classes = {agreed}: the files show {len(names)} ({', '.join(names[:6])}), whose numbers "
            f"among {agreed} nobody can know; {way_out}"
        )


def hospital_in_form_of(run: Path, hospital: str, given: dict[str, Any]) -> Cohort:
    """A cohort of one hospital from its own files, in the form of the images of a finished run.

    Args:
        run: its folder.
        hospital: its name; one of those that the files name, if they name several.
        given: settings of the section `cohort`, with a path.
    """
    from silodp.cohorts.cohort import Cohort, all_numbers
    from silodp.runs.folder import read_cohort_file

    facts = read_cohort_file(run)
    height, width = facts["size"]
    form: dict[str, Any] = {"channels": facts["channels"]}
    if height == width:
        form["image_size"] = height
    if facts["target"] == "class":
        form["classes"] = len(facts["classes"])
    cohort = _load({**form, **given})
    own = _select_hospital(cohort, hospital if len(cohort.hospitals) > 1 else None)
    _refuse_unclear_numbers(own.classes, own.train.targets.ndim == 1, form.get("classes"))
    known = [str(name) for name in facts["classes"]]
    named = "classes" in form and not (all_numbers(own.classes) or all_numbers(known))
    if named and list(own.classes) != known:
        raise InputError(
            f"{given.get('path')}: the classes {', '.join(own.classes)}, and the model knows "
            f"{', '.join(known)}; name them alike"
        )
    return Cohort(cohort.name, (replace(own, name=hospital),)).check(form.get("classes"))


def settings_of_one(given: dict[str, Any], on_read: OnRead | None = None) -> CohortSettings:
    """The settings of a site's files, which are of one hospital where they name none. Reads the files."""
    from silodp.cohorts import CohortSettings
    from silodp.cohorts.inspection import recognise
    from silodp.cohorts.kinds import StoredCohort
    from silodp.cohorts.loading import read_store

    if "path" not in given and "kind" not in given:
        raise InputError("cohort.path: missing; give --data PATH, or set it in site.toml")
    settings = CohortSettings.of(**given) if "kind" in given else recognise(given)[0]
    if not isinstance(settings, StoredCohort) or {"partition", "hospitals"} & given.keys():
        return settings
    named = any(row.hospital is not None for row in read_store(settings, on_read).rows)
    return settings if named else settings.model_copy(update={"hospitals": 1})


def _load(given: dict[str, Any]) -> Cohort:
    from silodp.cohorts import load_cohort

    return load_cohort(settings_of_one(given))


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
