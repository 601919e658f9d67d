"""`silodp personalise`: a hospital's own fine-tuning of the released model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.terminal import console, say
from silodp.cli.training import Device
from silodp.cli.use import Run
from silodp.errors import InputError
from silodp.files import refuse_filled


def personalise(
    run: Run,
    hospital: Annotated[str, typer.Option(help="Whose images to train on, by its name in the run.")],
    out: Annotated[Path | None, typer.Option(help="A new folder; default RUN-HOSPITAL beside RUN.")] = None,
    epochs: Annotated[int, typer.Option(help="Over the hospital's training images.")] = 30,
    learning_rate: Annotated[float, typer.Option(help="Of SGD.")] = 0.02,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print personal.json on standard output.")] = False,
) -> None:
    """Fine-tune the released model on one hospital's own images; nothing of it goes back."""
    from silodp.cli.display import stages, titled_table
    from silodp.runs.personal import Tuning, write_personal
    from silodp.runs.personal import personalise as tune
    from silodp.runs.wording import show_interval

    if epochs < 1:
        raise InputError(f"--epochs {epochs}: give 1 or more")
    if not learning_rate > 0:
        raise InputError(f"--learning-rate {learning_rate:g}: choose a number above 0, such as 0.02")
    folder = out or run.with_name(f"{run.name}-{hospital}")
    refuse_filled(folder)
    tuning = Tuning(epochs, learning_rate)
    with stages() as on_step:
        personal = tune(run, hospital, tuning, device=device, on_step=on_step)
    write_personal(personal, run, tuning, folder)
    if as_json:
        print((folder / "personal.json").read_text(encoding="utf-8"), end="")
        return
    table = titled_table(f"{hospital}: its own {personal.scores['released'].images} test images")
    table.add_column("model")
    for metric in personal.scores["released"].values:
        table.add_column(metric, justify="right")
    table.add_column("95 % interval", justify="right")
    for name, scores in personal.scores.items():
        headline = next(iter(scores.values))
        figures = (f"{value:.3f}" for value in scores.values.values())
        table.add_row(name, *figures, show_interval(list(scores.intervals[headline])))
    console().print(table)
    say("alone: the same training without the federation; nothing of «personal» goes back, so it costs no ε")
    say(f"{folder}: learnt from one hospital's images without noise; do not pass it on")
