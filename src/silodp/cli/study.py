"""`silodp study`: reproduce a table or figure of the paper."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silodp.cli.completion import studies
from silodp.cli.options import Device, one_of
from silodp.cli.terminal import say
from silodp.errors import InputError

if TYPE_CHECKING:
    from silodp.studies.study import Study


def study(
    name: Annotated[
        str | None, typer.Argument(help="Which one; none: list them.", autocompletion=studies)
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), small (minutes on two cores) or paper (for a GPU).")
    ] = "small",
    cohort: Annotated[
        str | None, typer.Option(help="A file or folder with images, instead of synthetic ones.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many; default 1, at paper scale 3.")] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of every run; repeatable."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Only runs with this in their name, such as fedavg-z0.5.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of all studies: runs in OUT/runs, results in OUT/NAME-SCALE.")
    ] = Path("studies"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a study that was started.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time; default: one a core, one where there is a GPU.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Reproduce a table or figure of the paper: csv, Markdown and figures, ours beside the paper's numbers.

    Try one in seconds: silodp study table1-prostate --scale smoke. Without a name: the list of all.
    """
    from silodp.studies import study_named, study_names

    if name is None:
        _list([study_named(one) for one in study_names()])
        return
    from silodp.cli.display import stages
    from silodp.cli.training import interruptible
    from silodp.studies.planning import make_plan
    from silodp.studies.running import run_study
    from silodp.studies.study import SCALES
    from silodp.studies.workers import terminated_like_interrupted

    chosen = study_named(name)
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: at least one")
    words = [word for word in sys.argv[1:] if word != "--resume"]
    again = "the same command and --resume"
    with interruptible(again), terminated_like_interrupted(), stages() as on_progress:
        plan = make_plan(
            chosen.task,
            one_of("--scale", scale, SCALES),
            cohort=cohort,
            seeds=seeds,
            first_seed=seed,
            changes=changes or (),
            settable=chosen.settable,
            bases=chosen.bases,
            command=shlex.join(["silodp", *words]),
            on_read=lambda done, total: on_progress("reading files", done, total),
        )
        folder = run_study(
            chosen, plan, out, resume=resume, only=only, jobs=jobs, device=device, on_cell=on_progress
        )
    say((folder / "table.md").read_text(encoding="utf-8"))
    say(f"study folder: {folder}")


def _list(studies: list[Study]) -> None:
    from rich.table import Column

    from silodp.cli.tables import numbers, plain_table
    from silodp.cli.terminal import console as terminal

    table = plain_table(Column("study", no_wrap=True), *numbers("runs"), "what it is")
    for one in studies:
        table.add_row(one.name, str(one.runs), one.title)
    console = terminal()
    console.print(table)
    console.print("runs: with one seed at --scale small; studies share runs, each is run once")
