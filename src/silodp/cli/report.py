"""`silodp report`: a page of a run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.completion import run_folders
from silodp.cli.terminal import print_error, say


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…", help="Folders of runs; several are compared.", autocompletion=run_folders
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; default RUN/report.html, or report.html here for several.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    images: Annotated[
        bool | None,
        typer.Option(
            "--images/--without-images",
            help="Show test images with predictions; default: of synthetic cohorts, never of patients.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make one HTML page of a run: curves, both ε, results, predictions. It needs no network."""
    from silodp.cli.display import stages
    from silodp.report.page import compose, default_place, refuse_place, write_page
    from silodp.report.reading import find_runs, read_runs

    read = read_runs(find_runs(runs))
    place = out or default_place(runs)
    refuse_place(place)
    with stages() as on_progress:
        page = compose(read, images=images, on_progress=on_progress)
    write_page(page, place)
    say(
        f"{place}: shows patients' images; handle it as you would handle the images"
        if page.shows_patients
        else place
    )
    if open_it:
        open_page(place)


def open_page(place: Path) -> None:
    import webbrowser

    if not webbrowser.open(place.resolve().as_uri()):
        print_error(f"no browser could be opened; open {place} yourself")
