"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from silodp.cli.completion import experiments, run_folders
from silodp.errors import InputError, did_you_mean

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


def one_of(option: str, value: str, choices: Collection[str]) -> Any:
    """The value; refused unless it is one of the choices."""
    if value not in choices:
        raise InputError(
            f"{option} {value}: choose one of {', '.join(choices)}" + did_you_mean(value, choices)
        )
    return value
