"""`silodp predict`, `silodp evaluate`, `silodp export`: use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silodp.cli.options import Device, FinishedRun, Json
from silodp.cli.terminal import console, print_error, print_json, say

if TYPE_CHECKING:
    from silodp.runs.schema import ModelTest

Which = Annotated[bool, typer.Option("--best", help="The model best in validation instead of the last one.")]


def predict(
    run: FinishedRun,
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="An image, a volume, an npz file, or a folder.")
    ],
    out: Annotated[Path, typer.Option(help="A new folder for masks or predictions.csv.")],
    overlays: Annotated[
        bool, typer.Option("--overlays", help="Draw the outlines over the images, too.")
    ] = False,
    best: Which = False,
    device: Device = "auto",
) -> None:
    """Predict on new images: masks in the images' geometry, or class probabilities."""
    from silodp.cli.display import counting
    from silodp.inference.output import predict_files
    from silodp.inference.predictor import load

    predictor = load(run, which="best" if best else "last", device=device)
    with counting("predicting") as on_progress:
        problems = predict_files(predictor, path, out, overlays=overlays, on_progress=on_progress)
    for problem in problems:
        print_error(f"left out: {problem}")
    say(f"{out}: predictions for patients' images; handle them as you would handle the images")


def evaluate(
    run: FinishedRun,
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Labelled images, as `silodp data check` reads.")
    ],
    out: Annotated[Path | None, typer.Option(help="A new csv file with a row for each image.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="A new HTML page with all of it, as `silodp report` makes of a run.")
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Show images with predictions on the page; they are patients'.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the cohort, such as mask_threshold=1.",
        ),
    ] = None,
    best: Which = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Test the model on new labelled images, by hospital and together, with 95 % intervals."""
    from silodp.cli.display import counting
    from silodp.cli.report import open_page
    from silodp.errors import InputError
    from silodp.experiment import cohort_at
    from silodp.inference.evaluation import evaluate_files, write_images
    from silodp.inference.predictor import load
    from silodp.report.evaluated import compose_evaluation
    from silodp.report.page import refuse_place, write_page
    from silodp.report.reading import read_runs
    from silodp.report.words import seen_before

    for option, file in (("--out", out), ("--page", page)):
        if file is not None and file.exists():
            raise InputError(f"{option} {file}: exists already; give a new file")
    read = None
    if page is not None:
        refuse_place(page, "--page")
        (read,) = read_runs([run])
    elif images or open_it:
        raise InputError(f"{'--images' if images else '--open'}: there is no page; add --page FILE.html")
    predictor = load(run, which="best" if best else "last", device=device)
    with counting("reading files") as on_read:
        given, each = cohort_at(path, changes or []), out is not None or page is not None
        found = evaluate_files(predictor, given, each=each, on_read=on_read)
    if out is not None:
        write_images(found.each, out)
    if page is not None and read is not None:
        write_page(compose_evaluation(read, found, best=best, images=images), page, "--page")
    if as_json:
        print_json(found.test)
    else:
        _print_test(found.test, f"{path}: the model of {run}")
        if found.seen:
            say(f"{path}: {seen_before(found.files, found.seen)}")
    if page is not None:
        say(f"{page}: has figures on patients; handle it as you would handle their images", error=as_json)
        if open_it:
            open_page(page)


def _print_test(test: ModelTest, title: str) -> None:
    from rich.table import Column

    from silodp.cli.tables import make_table, numbers, print_table
    from silodp.runs.schema import or_nan
    from silodp.runs.wording import describe_test, show_interval, with_unit

    headline, *others = map(with_unit, test["mean"])
    table = make_table(title, Column("hospital", no_wrap=True), *numbers(headline, *others))
    for hospital, values in test["hospitals"].items():
        table.add_row(hospital, *(f"{or_nan(value):.3f}" for value in values.values()))
    table.add_row("mean", *(f"{or_nan(value):.3f}" for value in test["mean"].values()))
    print_table(console(), table, optional=others[::-1])
    for line in describe_test(test, headline):
        say(line)
    intervals = {name: show_interval(edges) for name, edges in test["intervals"]["mean"].items()}
    if told := [f"{name} {edges}" for name, edges in intervals.items() if edges and name != headline]:
        say(f"95 % intervals: {', '.join(told)}")


def export(
    run: FinishedRun,
    out: Annotated[Path, typer.Option(help="A new file, or for a MONAI bundle a new folder.")],
    form: Annotated[str, typer.Option("--format", help="onnx, monai or torch.")] = "onnx",
    best: Which = False,
) -> None:
    """Write the model for other programs; ONNX files and bundles say both ε and what they do not cover."""
    from silodp.inference.export import export as write
    from silodp.inference.predictor import load

    predictor = load(run, which="best" if best else "last", device="cpu")
    say(f"{out}: {write(predictor, run, form, out)}")
