"""`silodp run` and `silodp resume`: train an experiment, or continue a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silodp.cli.completion import run_folders
from silodp.cli.importing import importing
from silodp.cli.options import Changes, Device, Json, Preset
from silodp.cli.terminal import print_error, say
from silodp.errors import InputError

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead
    from silodp.runs.cluster import Cluster
    from silodp.runs.result import Result
    from silodp.runs.training import OnRound

Engine = Annotated[
    str, typer.Option(help="in-process, or flower: hospitals over a cluster, see docs/cluster.md.")
]
Gpus = Annotated[
    float | None,
    typer.Option(min=0, help="With --engine flower: GPUs a hospital takes; two share one at 0.5."),
]
Workers = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="SILODP_WORKERS",
        help="Processes in which hospitals train, on a CPU; default: one a core where threads = 1.",
    ),
]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Write event files into RUN/tensorboard.")]
Mlflow = Annotated[
    bool, typer.Option("--mlflow", help="Log to MLflow: at MLFLOW_TRACKING_URI, else in this folder.")
]


def run(
    experiment: Preset = "prostate-small",
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; default runs/NAME-1, -2, …")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers in the run.")] = None,
    device: Device = "auto",
    engine: Engine = "in-process",
    gpus: Gpus = None,
    workers: Workers = 0,
    tensorboard: Tensorboard = False,
    mlflow: Mlflow = False,
    as_json: Json = False,
) -> None:
    """Train one experiment."""
    from silodp.experiment import Experiment
    from silodp.runs.places import new_folder

    wanted = list(changes or []) + ([f"seed={seed}"] if seed is not None else [])
    loaded = Experiment.load(experiment, wanted)  # mistakes are refused before PyTorch is imported

    with importing():
        from silodp.runs.training import train

    with (
        new_folder(out, loaded.name) as folder,
        followed(
            folder, loaded.name, loaded.rounds, engine, tensorboard=tensorboard, mlflow=mlflow
        ) as (on_round, on_read),
    ):  # fmt: skip
        result = train(
            loaded, out=folder, device=device, engine=_engine(engine, gpus), workers=workers,
            on_round=on_round, on_read=on_read, on_trial=_show_trial,
        )  # fmt: skip
    print_result(result, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.", autocompletion=run_folders)],
    rounds: Annotated[
        int | None, typer.Option(help="Go on to so many rounds; default: what the experiment says.")
    ] = None,
    device: Device = "auto",
    engine: Engine = "in-process",
    gpus: Gpus = None,
    workers: Workers = 0,
    tensorboard: Tensorboard = False,
    mlflow: Mlflow = False,
    as_json: Json = False,
) -> None:
    """Go on with a run from its last checkpoint, or beyond its last round."""
    from silodp.runs.folder import read_experiment

    loaded = read_experiment(folder)

    with importing():
        from silodp.runs.training import resume as resume_run

    with followed(
        folder, loaded.name, rounds or loaded.rounds, engine, tensorboard=tensorboard, mlflow=mlflow
    ) as (on_round, on_read):
        result = resume_run(
            folder, rounds=rounds, device=device, engine=_engine(engine, gpus), workers=workers,
            on_round=on_round, on_read=on_read,
        )  # fmt: skip
    print_result(result, as_json)


def _engine(name: str, gpus: float | None) -> str | Cluster:
    if gpus is None:
        return name
    if name != "flower":
        raise InputError(f"--gpus {gpus:g}: only hospitals of --engine flower share GPUs; leave it out")
    from silodp.runs.cluster import Cluster

    return Cluster(gpus)


def _show_trial(tried: str, score: float) -> None:
    say(f"rehearsal on generated hospitals: {tried}: {score:.3f}", error=True)


@contextmanager
def followed(
    folder: Path, title: str, rounds: int, engine: str = "in-process", *, tensorboard: bool, mlflow: bool
) -> Iterator[tuple[OnRound, OnRead]]:
    """Around a training: progress bars, trackers, and on Ctrl-C the command to go on with."""
    from silodp.cli.display import progress
    from silodp.tracking import tracked

    with (
        interruptible(f"`silodp resume {folder}{' --engine flower' * (engine == 'flower')}`"),
        progress(title, rounds) as (show, on_read),
        tracked(folder, tensorboard=tensorboard, mlflow=mlflow, also=show) as on_round,
    ):
        yield on_round, on_read


@contextmanager
def interruptible(way_on: str) -> Iterator[None]:
    """On Ctrl-C, which loses the running round only, says what to go on with and exits with 130."""
    try:
        yield
    except KeyboardInterrupt:
        print_error(f"stopped; go on with {way_on}")
        raise typer.Exit(130) from None


def print_result(result: Result, as_json: bool) -> None:
    from silodp.cli.display import show_result

    if as_json:
        print((result.folder / "summary.json").read_text(encoding="utf-8"), end="")
    else:
        show_result(result)
