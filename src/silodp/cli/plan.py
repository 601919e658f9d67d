"""`silodp plan`: what so many hospitals can afford at a given ε, before anybody trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.terminal import console, say
from silodp.errors import InputError

PRESETS = {"segmentation": "prostate-hospital", "classification": "ich-hospital"}
ROUNDS = (5, 10, 20, 50, 100)


def plan(
    hospitals: Annotated[int, typer.Option(help="How many train together.")],
    epsilon: Annotated[float, typer.Option(help="That a whole hospital is to have, add-or-remove.")] = 8.0,
    delta: Annotated[float | None, typer.Option(help="δ; default: 10^-k, at most 1/hospitals.")] = None,
    task: Annotated[str, typer.Option(help="segmentation or classification.")] = "segmentation",
    out: Annotated[
        Path | None, typer.Option(help="Write an experiment that keeps to ε: a new TOML file.")
    ] = None,
) -> None:
    """What is affordable at ε for a hospital: how much of a network may train, and what to expect."""
    from silodp.cli.display import titled_table
    from silodp.experiment import Experiment, delta_by_rule
    from silodp.models.start import parts_of
    from silodp.privacy.affordable import most_numbers, noise_in_bounds, signal_over_noise
    from silodp.privacy.calibration import Setting, Target, noise_for

    if hospitals < 1:
        raise InputError(f"--hospitals {hospitals}: a federation has at least one")
    if task not in PRESETS:
        raise InputError(f"--task {task}: choose one of {', '.join(PRESETS)}")
    if out is not None and (out.exists() or out.suffix != ".toml"):
        raise InputError(f"--out {out}: give a new file that ends in .toml")
    delta = delta_by_rule(hospitals) if delta is None else delta
    target, setting = Target(epsilon), Setting(delta)
    changes = {"budget.epsilon": epsilon, "privacy.delta": delta, "name": f"plan-{hospitals}-hospitals"}
    experiment = Experiment.load(PRESETS[task], changes)
    table = titled_table(
        f"{hospitals} hospitals, ε = {epsilon:g} for each, δ = {delta:g}: signal over noise of a whole run",
        "Whatever the number of rounds. Signal does not say that so few numbers can use it: the head alone "
        "hardly learns. Measured: docs/hospital-privacy.md.",
    )
    for heading in ("what trains", "numbers", "signal / noise", "the noise"):
        table.add_column(heading, justify="left" if heading in ("what trains", "the noise") else "right")
    for part, numbers in parts_of(experiment.model, task).items():
        ratio = signal_over_noise(epsilon, delta, hospitals, numbers)
        table.add_row(part, f"{numbers:,}", f"{ratio:.2f}", _expected(ratio))
    console().print(table)
    numbers = parts_of(experiment.model, task)[experiment.model.trainable]
    per_round = titled_table(f"rounds, if {experiment.model.trainable} trains")
    for heading in ("rounds", "noise multiplier z", "noise a round, in C"):
        per_round.add_column(heading, justify="right")
    for rounds in ROUNDS:
        z = noise_for(target, setting, rounds)
        per_round.add_row(str(rounds), f"{z:.3g}", f"{noise_in_bounds(z, hospitals, numbers):.3g}")
    console().print(per_round)
    say(f"as much signal as noise: {most_numbers(epsilon, delta, hospitals):,} numbers")
    ratio = signal_over_noise(epsilon, delta, hospitals, numbers)
    say(_worth(ratio, hospitals))
    if out is not None:
        out.write_text(experiment.said(), encoding="utf-8")
        say(f"{out}: set its cohort, then `silodp run {out}`; its budget ends it at ε = {epsilon:g}")


def _expected(ratio: float) -> str:
    if ratio >= 1:
        return "is less than the signal"
    if ratio >= 0.3:
        return "leaves most of the signal"
    return "leaves a little" if ratio >= 0.1 else "drowns it"


def _worth(ratio: float, hospitals: int) -> str:
    if ratio < 0.1:
        return (
            "federation is hardly worth it here: fine-tune a start at each hospital instead, or find more "
            "hospitals, or allow a larger ε"
        )
    if hospitals <= 6:
        return (
            "with so few hospitals, of a dozen patients or more each, fine-tuning a start alone comes close: "
            "compare with `silodp personalise`"
        )
    return "worth trying; `silodp personalise` then shows each hospital whether it gained"
