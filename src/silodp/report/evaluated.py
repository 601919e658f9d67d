"""The page of a model on new labelled images, in the same frame and with the same tables as that of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from silodp.report import tables, words
from silodp.report.chart import is_empty
from silodp.report.curves import reach_chart
from silodp.report.frame import Page, render
from silodp.report.metric import metric
from silodp.report.page import main_tiles, promised
from silodp.report.predictions import PATIENTS_STAY, Predictions, predict_all
from silodp.report.reading import Run
from silodp.runs.wording import SEEN, tested_on

if TYPE_CHECKING:
    from silodp.inference.evaluation import Evaluation

SHOWN = ("metrics on the new images, by hospital and image by image", "names of files")


def compose_evaluation(run: Run, found: Evaluation, *, best: bool = False, images: bool = False) -> Page:
    """The page of an evaluation with scores of single images.

    Args:
        run: the run of the model.
        found: the evaluation.
        best: whether the model was the best one in validation, not the last.
        images: whether to show images, which are of patients.
    """
    test, data = found.test, f"«{found.cohort.name}»"
    count, patients = tested_on(test)
    whose = "patients are not named" if patients is None else f"of {words.several(patients, 'patient')}"
    tried = f"Here it is tried on {words.several(count, 'labelled image')}: {data}."
    caption = f"Results on {data}, {SEEN[test['batch']]}, with 95 % intervals"
    view = promised(run) | {
        "headline": [words.trained(run), tried, words.reached(run.headline, test), *words.how_private(run)],
        "tiles": [*main_tiles(run, test), ("Images", f"{count:,}", whose)],
        "facts": _facts(run, found, best),
        "results": tables.scored(caption, test, run),
        "metrics": [metric(name, run.classes) for name in test["mean"]],
        "worst": tables.worst(found.each, run),
        "predictions": _predictions(run, found, images),
        "shown": SHOWN,
    }
    return render("evaluated.html", "silodp evaluate", f"Run «{run.name}» on {data}", images, view=view)


def _facts(run: Run, found: Evaluation, best: bool) -> list[tuple[str, str]]:
    from silodp.inference.evaluation import EVERYONE

    test = found.test
    count, patients = tested_on(test)
    network = words.NETWORKS.get(run.experiment.model.kind, run.experiment.model.kind)
    which = "the best in validation, a choice that no ε covers" if best else "the last"
    named = list(test["tried"]) != [EVERYONE]
    whom = "images, since patients are not named" if patients is None else f"{patients:,} patients"
    left_out = f"; {words.several(found.left_out, 'thing')} could not be used" if found.left_out else ""
    return [
        ("Model", f"{network} of the run «{run.name}» after round {test['round']}, {which}"),
        ("Data", f"«{found.cohort.name}»; {words.seen_before(found.files, found.seen)}"),
        ("Hospitals", f"{len(test['tried'])}, as the files name them" if named else "the files name none"),
        ("Images", f"{count:,}, {SEEN[test['batch']]}{left_out}"),
        ("Intervals", f"bootstrap over {whom}"),
    ]


def _predictions(run: Run, found: Evaluation, images: bool) -> Predictions:
    shown = predict_all(
        found.cohort,
        lambda hospital: found.outputs[hospital.name].double().numpy(),
        run,
        images,
        lambda *_: None,
    )
    chart = reach_chart(found.each)
    charts = shown.charts if is_empty(chart) else (chart, *shown.charts)
    return replace(shown, charts=charts, missing="" if images else PATIENTS_STAY.format("silodp evaluate"))
