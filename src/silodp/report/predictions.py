"""Predictions of the last model on test images, or why there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from silodp.errors import InputError
from silodp.report.chart import Chart
from silodp.report.pictures import Gallery, Logits, images_of, outlines_of
from silodp.report.reading import Run
from silodp.report.roc import roc_charts
from silodp.runs.threads import threads

if TYPE_CHECKING:
    from silodp.cohorts import Cohort, HospitalData
    from silodp.local.trainer import LocalTrainer

OnProgress = Callable[[str, int, int], None]

AS_ASKED = "Images are left out, as was asked for (--without-images)."
PATIENTS_STAY = "The test images are of patients, so they are left out; `{} --images` puts them in."


@dataclass(frozen=True)
class Predictions:
    """Charts and images to show, and a sentence on what is missing."""

    missing: str = ""
    charts: tuple[Chart, ...] = ()
    gallery: Gallery | None = None
    of_patients: bool = False


def predict(run: Run, *, images: bool | None = None, on_progress: OnProgress | None = None) -> Predictions:
    """Loads cohort and model of a run and predicts on the test images.

    Args:
        images: whether to show test images; None: only those of a synthetic cohort.
        on_progress: called with (stage, done, total).
    """
    synthetic = run.experiment.cohort.kind.startswith("synthetic")
    shown = synthetic if images is None else images
    without = AS_ASKED if images is False else PATIENTS_STAY.format("silodp report")
    if why := _unavailable(run):
        return Predictions(f"{why}, so there are no predictions.")
    if not shown and run.experiment.task == "segmentation":  # there are only images to show
        return Predictions(without)
    from silodp.cohorts import load_cohort
    from silodp.runs.build import trainer_outside
    from silodp.runs.fitting import named_network

    report = on_progress or (lambda stage, done, total: None)
    try:
        cohort = load_cohort(run.experiment.cohort, partial(report, "reading files"))
    except (InputError, OSError):
        return Predictions(f"{_unreadable(run)}, so the model's predictions are left out.")
    if not _is_the_same(cohort, run):
        return Predictions(
            "The data are no longer those of cohort.json, so the model's predictions are left out."
        )
    try:
        trainer = trainer_outside(named_network(run.experiment, cohort, run.folder), run.experiment)
    except (InputError, OSError):
        return Predictions(
            "model.safetensors does not fit the experiment, so the model's predictions are left out."
        )
    with threads(run.experiment.threads):
        found = predict_all(cohort, partial(_logits, trainer), run, shown, report)
    return replace(found, of_patients=not synthetic) if shown else replace(found, missing=without)


def predict_all(
    cohort: Cohort, ask: Callable[[HospitalData], Logits], run: Run, images: bool, report: OnProgress
) -> Predictions:
    """Charts and images from the model's logits, which `ask` gives for a hospital's test images."""
    classes = run.classes
    if run.experiment.task == "segmentation":
        gallery = (
            outlines_of(cohort, ask, classes, partial(report, "drawing predictions")) if images else None
        )
        return Predictions(gallery=gallery)
    logits = {}
    for done, hospital in enumerate(cohort.hospitals, start=1):
        logits[hospital.name] = ask(hospital)
        report("predicting", done, len(cohort.hospitals))
    scored = {data.name: (logits[data.name], data.test.targets.numpy()) for data in cohort.hospitals}
    gallery = images_of(cohort, logits, classes) if images else None
    return Predictions(charts=tuple(roc_charts(scored, classes)), gallery=gallery)


def _unavailable(run: Run) -> str:
    if run.summary is None or not (run.folder / "model.safetensors").is_file():
        return "The run has no finished model"
    if run.experiment.cohort.kind == "deployed":
        return "The images are at the hospitals"
    if run.experiment.cohort.kind == "custom":
        return "The data were given from Python and are not in the run's folder"
    if run.experiment.model.kind == "custom":
        return "The network was given from Python and is not in the run's folder"
    return ""


def _unreadable(run: Run) -> str:
    """Why the data cannot be read, without the error message, which may name files and so patients."""
    where = run.experiment.cohort.files
    if where is not None and not Path(where).expanduser().exists():
        return "Nothing lies at cohort.path any more"
    return "The data cannot be read (`silodp data check` says why)"


def _is_the_same(cohort: Cohort, run: Run) -> bool:
    """Whether counts, members and file hashes are those in cohort.json."""
    from silodp.cohorts.description import describe
    from silodp.files import to_json

    return bool(json.loads(to_json(describe(cohort, run.experiment.cohort.classes))) == run.cohort)


def _logits(trainer: LocalTrainer, hospital: HospitalData) -> Logits:
    """Logits of all test images of a hospital in one batch, as in the run (BatchNorm mixes them)."""
    parameters, test = trainer.model.values, hospital.test.to(trainer.device)
    logits: Logits = trainer.logits(parameters, test).double().cpu().numpy()
    return logits
