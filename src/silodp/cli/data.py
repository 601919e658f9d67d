"""`silodp data …`: inspect files, draw them, decode them once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silodp.cli.options import CohortChanges, Json
from silodp.cli.terminal import print_json, say
from silodp.errors import InputError

if TYPE_CHECKING:
    from silodp.cohorts.inspection import Findings
    from silodp.cohorts.kinds import StoredCohort
    from silodp.cohorts.partition import Placement
    from silodp.cohorts.store import Store

data = typer.Typer(help="Look at hospitals' images before training on them.", no_args_is_help=True)

Where = Annotated[Path, typer.Argument(metavar="PATH", help="A folder or an npz file.")]


@data.command()
def check(path: Where, changes: CohortChanges = None, as_json: Json = False) -> None:
    """Say what is at PATH and what is wrong with it. Exit code 1 if anything is."""
    from silodp.cli.display_data import show_findings
    from silodp.experiment import cohort_at

    findings, _, _ = inspected(cohort_at(path, changes or []))
    if as_json:
        print_json(findings.to_dict())
    else:
        show_findings(findings, _warnings(findings))
    if not findings.is_clean:
        raise typer.Exit(1)


@data.command()
def preview(
    path: Where,
    out: Annotated[Path, typer.Option(help="page.html or sheet.png")],
    changes: CohortChanges = None,
    each: Annotated[int, typer.Option(min=1, help="Images of each hospital.")] = 8,
) -> None:
    """Draw a contact sheet, with masks drawn over the images."""
    from silodp.experiment import cohort_at
    from silodp.report.contact_sheet import write_contact_sheet

    findings, store, placement = inspected(cohort_at(path, changes or []))
    write_contact_sheet(store, placement, out, each=each, seed=findings.settings.seed)
    say(f"{out}: shows patients' images; handle it as you would handle the images")


@data.command()
def prepare(
    path: Where,
    out: Annotated[Path, typer.Option(help="A new folder for the decoded images.")],
    changes: CohortChanges = None,
) -> None:
    """Decode everything once into a folder that can be trained on, here or on another machine."""
    from silodp.cli.display import counting
    from silodp.cohorts.inspection import recognise
    from silodp.cohorts.kinds import FileCohort, PreparedCohort
    from silodp.cohorts.loading import prepare as prepare_files
    from silodp.experiment import cohort_at

    given = cohort_at(path, changes or [])
    with counting("reading files") as on_read:
        settings, catalogue, _ = recognise(given)
        if not isinstance(settings, FileCohort):
            raise InputError(f"{path}: it is prepared already; train on it with {_cohort_options(settings)}")
        store = prepare_files(settings, out, on_read, catalogue)
    say(f"{len(store.rows):,} images of {store.images.shape[1:]} in {out}")
    form = {"image_size": store.images.shape[-1], "channels": store.images.shape[1]}
    kept = settings.model_dump(include=settings.model_fields_set & PreparedCohort.model_fields.keys())
    ready = PreparedCohort(**kept | {"kind": "prepared", "path": str(out)} | form)
    say(f"train on them with: {_cohort_options(ready)}")


def inspected(given: Mapping[str, Any]) -> tuple[Findings, Store, Placement | None]:
    """What `cohorts.inspection.inspect` finds, with a bar while files are read."""
    from silodp.cli.display import counting
    from silodp.cohorts.inspection import inspect

    with counting("reading files") as on_read:
        return inspect(given, on_read)


def _warnings(findings: Findings) -> list[str]:
    """The warnings that a run on these files would give."""
    from silodp.experiment import Experiment
    from silodp.runs.warnings import ALL_EMPTY, about_delta, about_hospitals

    if findings.description is None:
        return []
    hospitals = len(findings.description["hospitals"])
    empty = findings.target == "mask" and not any(findings.classes.values())
    needed = Experiment().intermediaries.min_samples
    few = [
        f"{name} has {count} training images, and a run needs {needed}; give it more, or leave it out"
        for name, parts in findings.description["hospitals"].items()
        if (count := parts["train"]["images"]) < needed
    ]
    return [ALL_EMPTY] * empty + few + about_hospitals(hospitals) + about_delta(hospitals)


def _cohort_options(settings: StoredCohort) -> str:
    """The options of `silodp run` that use this cohort."""
    from silodp.cli.suggestion import explicit_settings, options

    return options({f"cohort.{name}": value for name, value in explicit_settings(settings).items()})
