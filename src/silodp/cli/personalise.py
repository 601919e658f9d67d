"""`silodp personalise`: fine-tune the released model on one hospital's images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.options import Device, FinishedRun, Json
from silodp.cli.terminal import console, say
from silodp.errors import InputError
from silodp.files import plain_name, refuse_filled


def personalise(
    run: FinishedRun,
    hospital: Annotated[str, typer.Option(help="Whose images to train on, by its name in the run.")],
    out: Annotated[Path | None, typer.Option(help="A new folder; default RUN-HOSPITAL beside RUN.")] = None,
    epochs: Annotated[int, typer.Option(help="Over the hospital's training images.")] = 30,
    learning_rate: Annotated[float, typer.Option(help="Of SGD.")] = 0.02,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Fine-tune the released model on one hospital's own images; nothing is sent back."""
    from silodp.cli.display import stages
    from silodp.cli.tables import make_table, numbers
    from silodp.runs.personal import Tuning, write_personal
    from silodp.runs.personal import personalise as tune
    from silodp.runs.wording import show_interval

    if epochs < 1:
        raise InputError(f"--epochs {epochs}: give 1 or more")
    if not learning_rate > 0:
        raise InputError(f"--learning-rate {learning_rate:g}: choose a number above 0, such as 0.02")
    place = run if run.name.strip(".") else run.resolve()
    folder = out or place.with_name(f"{place.name}-{plain_name(hospital)}")
    refuse_filled(folder)
    tuning = Tuning(epochs, learning_rate)
    with stages() as on_step:
        personal = tune(run, hospital, tuning, device=device, on_step=on_step)
    write_personal(personal, run, tuning, folder)
    if as_json:
        print((folder / "personal.json").read_text(encoding="utf-8"), end="")
        return
    released = personal.scores["released"]
    title = f"{hospital}: its own {released.images} test images"
    table = make_table(title, "model", *numbers(*released.values, "95 % interval"))
    for name, scores in personal.scores.items():
        headline = next(iter(scores.values))
        figures = (f"{value:.3f}" for value in scores.values.values())
        table.add_row(name, *figures, show_interval(list(scores.intervals[headline])))
    console().print(table)
    say("alone: the same training without the federation; «personal» stays at the hospital and costs no ε")
    say(f"{folder}: trained on one hospital's images without noise; do not pass it on")
