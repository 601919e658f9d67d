"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.completion import experiments, run_folders

Preset = Annotated[str, typer.Argument(help="A preset's name or a TOML file.", autocompletion=experiments)]
FinishedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", autocompletion=run_folders)
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting (`silodp settings` lists them); repeatable."
    ),
]
CohortChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting of the cohort, such as hospitals=6; repeatable."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
