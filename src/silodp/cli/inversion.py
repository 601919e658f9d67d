"""`silodp attack`: reconstruct training images from what leaves a hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.completion import runs_and_experiments
from silodp.cli.options import Changes, Device, Json, one_of
from silodp.errors import InputError


def attack(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|PRESET",
            help="A run's folder, a preset or a TOML file.",
            autocompletion=runs_and_experiments,
        ),
    ],
    changes: Changes = None,
    images: Annotated[int, typer.Option(help="Images of one hospital to reconstruct.")] = 2,
    batch: Annotated[int, typer.Option(help="How many of them are in one step.")] = 1,
    labels: Annotated[
        str, typer.Option(help="known or inferred: whether the attacker knows them.")
    ] = "known",
    view: Annotated[list[str] | None, typer.Option(help="Only this view; repeatable; default all.")] = None,
    restarts: Annotated[int, typer.Option(help="Random starts of the search.")] = 2,
    iterations: Annotated[int, typer.Option(help="Steps of the search from each start.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the attack.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A new folder; default attacks/NAME-1, -2, …")] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Reconstruct training images from one round by gradient inversion, with and without noise."""
    from rich.table import Column

    from silodp.attacks.inversion import AttackSettings, Search, invert
    from silodp.attacks.inversion.output import (
        HEADER,
        WARNING,
        rows,
        shows_patients,
        verdict,
        write_attack,
    )
    from silodp.cli.display import stages
    from silodp.cli.tables import make_table, numbers, print_table
    from silodp.cli.terminal import console as terminal
    from silodp.experiment import Experiment
    from silodp.files import refuse_filled
    from silodp.runs.folder import read_experiment
    from silodp.runs.places import new_folder

    known = one_of("--labels", labels, ("known", "inferred"))
    if restarts < 1 or iterations < 1:
        raise InputError(f"--restarts {restarts}, --iterations {iterations}: at least one of each")
    run = Path(target) if Path(target).is_dir() else None
    if run is not None and changes:
        raise InputError(f"attack {run}: a run brings its own settings; leave --set out")
    experiment = read_experiment(run) if run is not None else Experiment.load(target, changes or ())
    if out is not None:
        refuse_filled(out)
    settings = AttackSettings(images, batch, known, tuple(view or ()), Search(restarts, iterations), seed)
    with new_folder(out, experiment.name, "attacks") as folder:
        with stages() as on_progress:
            result = invert(experiment, run=run, device=device, settings=settings, on_progress=on_progress)
        write_attack(result, folder)
    if as_json:
        print((folder / "attack.json").read_text(encoding="utf-8"), end="")
        return
    title = f"{experiment.name}: what an attacker reconstructs from one round"
    view_column = Column(HEADER[0], no_wrap=True)
    table = make_table(title, view_column, *numbers(*HEADER[2:]), caption=verdict(result))
    for name, _, *figures in rows(result):
        table.add_row(name, *figures)
    console = terminal()
    print_table(console, table, optional=(HEADER[-1], HEADER[-2]))
    for name, words, *_ in rows(result):
        console.print(f"{name}: {words}")
    if shows_patients(result):
        console.print(WARNING)
    console.print(f"attack folder: {folder} (look at sheet.png)", soft_wrap=True)
