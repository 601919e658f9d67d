"""`silodp demo`: four runs on the same data side by side, to show what each method gains and costs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silodp.cli.importing import importing
from silodp.cli.options import Device
from silodp.cli.report import report
from silodp.cli.terminal import say
from silodp.cli.training import Mlflow, Tensorboard, Workers, followed

if TYPE_CHECKING:
    from silodp.experiment import Experiment

VARIANTS: dict[str, dict[str, object]] = {
    "without privacy": {
        "privacy.noise_multiplier": 0.0,
        "clipping.rule": "none",
        "intermediaries.rule": "fixed",
    },
    "DP-FedAvg": {"intermediaries.rule": "fixed"},
    "with intermediaries": {},
    "for whole hospitals": {
        "rounds": 10,
        "model.affine": True,
        "model.start": "pelvis-8",
        "model.trainable": "norm+head",
        "local": {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 8, "state": "fresh"},
        "intermediaries": {"rule": "fixed", "count": 1},
        "clipping": {"rule": "rehearsed", "noise": 1.5},
        "privacy": {},
        "budget": {"epsilon": 8.0, "sets_noise": True},
        "server.average": 0.5,
    },
}
ON_THE_START = (
    "«for whole hospitals» begins with a start trained on images of the same generator as the demo's "
    "hospitals, which helps it here; docs/hospital-privacy.md has figures on real images"
)


def demo(
    out: Annotated[Path | None, typer.Option(help="A new folder for the four runs.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers in the runs.")] = 0,
    device: Device = "auto",
    tensorboard: Tensorboard = False,
    mlflow: Mlflow = False,
    workers: Workers = 0,
    open_it: Annotated[bool, typer.Option("--open", help="Make the page of the runs and open it.")] = False,
) -> None:
    """Train the preset `demo` four times: without privacy, DP-FedAvg, intermediaries, and from a start."""
    from silodp.cli.display import show_comparison
    from silodp.files import private_folder
    from silodp.runs.places import new_folder

    with importing():
        from silodp.runs.training import train

    experiments, results = demo_experiments(seed), {}
    with new_folder(out, "demo") as folder:
        private_folder(folder)
        for title, experiment in experiments.items():
            path = folder / experiment.name
            with followed(path, title, experiment.rounds, tensorboard=tensorboard, mlflow=mlflow) as (
                show,
                _,
            ):
                results[title] = train(experiment, out=path, device=device, workers=workers, on_round=show)
    show_comparison(results)
    say(ON_THE_START)
    if open_it:
        report([folder], open_it=True)
    else:
        say(f"curves, both ε and predictions on one page: silodp report {shlex.quote(str(folder))} --open")


def demo_experiments(seed: int = 0) -> dict[str, Experiment]:
    """The four variants of the preset `demo`, by their titles in the table."""
    from silodp.experiment import Experiment

    return {
        title: Experiment.load("demo", changes | {"name": title.lower().replace(" ", "-"), "seed": seed})
        for title, changes in VARIANTS.items()
    }
