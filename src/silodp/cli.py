"""The command line: parse, call, print. What a command does lives in the package."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from silodp.errors import InputError

app = typer.Typer(
    help="Client-level differential privacy for federated medical imaging.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print summary.json on standard output.")]


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(help="A preset's name or a TOML file.")] = "prostate-small",
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; default runs/NAME-1, -2, …")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all chance in the run.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train one experiment."""
    from silodp.display import progress
    from silodp.experiment import Experiment
    from silodp.training import free_folder, train

    wanted = list(changes or []) + ([f"seed={seed}"] if seed is not None else [])
    loaded = Experiment.load(experiment, wanted)
    folder = out or free_folder(loaded.name)
    with _interruptible(folder), progress(loaded.name, loaded.rounds) as on_round:
        result = train(loaded, out=folder, device=device, on_round=on_round)
    _print_result(result, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.")],
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Go on with a run from its last checkpoint."""
    from silodp.display import progress
    from silodp.run_folder import read_experiment
    from silodp.training import resume as resume_run

    loaded = read_experiment(folder)
    with _interruptible(folder), progress(loaded.name, loaded.rounds) as on_round:
        result = resume_run(folder, device=device, on_round=on_round)
    _print_result(result, as_json)


@app.command()
def presets() -> None:
    """List the presets."""
    from silodp.experiment import Experiment, preset_names

    table = Table(box=None, pad_edge=False)
    for column in ("preset", "rounds", "what it is"):
        table.add_column(column)
    for name in preset_names():
        preset = Experiment.load(name)
        table.add_row(name, str(preset.rounds), preset.description)
    Console().print(table)


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="A new folder for the three runs.")] = None,
    device: Device = "auto",
) -> None:
    """Train the preset `demo` three times: without privacy, with DP-FedAvg, and with intermediaries."""
    from silodp.demo import demo_experiments
    from silodp.display import progress, show_comparison
    from silodp.run_folder import refuse_used
    from silodp.training import free_folder, train

    folder = out or free_folder("demo")
    refuse_used(folder)
    results = {}
    for title, experiment in demo_experiments().items():
        path = folder / experiment.name
        with _interruptible(path), progress(title, experiment.rounds) as on_round:
            results[title] = train(experiment, out=path, device=device, on_round=on_round)
    show_comparison(results)


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """Ctrl-C loses the round that was running, and nothing else."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"silodp: stopped; go on with `silodp resume {folder}`", file=sys.stderr)
        raise typer.Exit(130) from None


def _print_result(result: object, as_json: bool) -> None:
    from silodp.display import show_result
    from silodp.training import Result

    assert isinstance(result, Result)
    if as_json:
        print((result.folder / "summary.json").read_text(encoding="utf-8"), end="")
    else:
        show_result(result)


def main() -> None:
    """Runs a command; what a person can mend ends with one line and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="silodp: %(message)s")
    try:
        app()
    except (InputError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        print(f"silodp: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(
            "silodp: stopped; `silodp resume FOLDER` goes on after the last finished round", file=sys.stderr
        )
        sys.exit(130)
