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
    data: Annotated[
        Path | None,
        typer.Option(help="The hospital's own files, where the run did not read them (`silodp deploy`)."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="With --data: a setting of the cohort; repeatable."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Over the hospital's training images.")] = 30,
    learning_rate: Annotated[float, typer.Option(help="Of SGD.")] = 0.02,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Fine-tune the released model on one hospital's own images; nothing is sent back."""
    from silodp.cli.display import stages
    from silodp.cli.tables import make_table, numbers, print_table
    from silodp.runs.personal import Tuning, write_personal
    from silodp.runs.personal import personalise as tune
    from silodp.runs.wording import show_interval, with_unit

    if epochs < 1:
        raise InputError(f"--epochs {epochs}: give 1 or more")
    if not learning_rate > 0:
        raise InputError(f"--learning-rate {learning_rate:g}: choose a number above 0, such as 0.02")
    place = run if run.name.strip(".") else run.resolve()
    folder = out or place.with_name(f"{place.name}-{plain_name(hospital)}")
    refuse_filled(folder)
    tuning = Tuning(epochs, learning_rate)
    cohort = None
    if data is not None:
        from silodp.deploy.own_data import hospital_in_form_of
        from silodp.experiment import cohort_at

        cohort = hospital_in_form_of(run, hospital, cohort_at(data, changes or []))
    elif changes:
        raise InputError(f"--set {changes[0]}: there are no own files; add --data PATH")
    with stages() as on_step:
        personal = tune(run, hospital, tuning, cohort=cohort, device=device, on_step=on_step)
    write_personal(personal, run, tuning, folder)
    if as_json:
        print((folder / "personal.json").read_text(encoding="utf-8"), end="")
        return
    released = personal.scores["released"]
    headings = [with_unit(name) for name in released.values]
    title = f"{hospital}: its own {released.images} test images"
    table = make_table(title, "model", *numbers(*headings, "95 % interval"))
    for name, scores in personal.scores.items():
        headline = next(iter(scores.values))
        figures = (f"{value:.3f}" for value in scores.values.values())
        table.add_row(name, *figures, show_interval(list(scores.intervals[headline])))
    print_table(console(), table, optional=headings[:0:-1])
    say("alone: the same training without the federation; «personal» stays at the hospital and costs no ε")
    say(f"{folder}: trained on one hospital's images without noise; do not pass it on")
