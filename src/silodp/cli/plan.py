"""`silodp plan`: what a number of hospitals can afford at a given ε, before anyone trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.options import one_of
from silodp.cli.terminal import console, say
from silodp.errors import InputError

PRESETS = {"segmentation": "prostate-hospital", "classification": "ich-hospital"}
ROUNDS = (5, 10, 20, 50, 100)


def plan(
    hospitals: Annotated[int, typer.Option(help="How many train together.")],
    epsilon: Annotated[float, typer.Option(help="For a whole hospital, add-or-remove.")] = 8.0,
    delta: Annotated[float | None, typer.Option(help="δ; default: 10^-k, at most 1/hospitals.")] = None,
    task: Annotated[str, typer.Option(help="segmentation or classification.")] = "segmentation",
    out: Annotated[
        Path | None, typer.Option(help="Write an experiment that keeps to ε: a new TOML file.")
    ] = None,
) -> None:
    """Say how much of a network can train at a given ε for a hospital, and what to expect."""
    from silodp.cli.tables import make_table, numbers
    from silodp.experiment import Experiment, delta_by_rule
    from silodp.models.start import parts_of
    from silodp.privacy.affordable import most_numbers, noise_in_bounds, signal_over_noise
    from silodp.privacy.calibration import Setting, Target, noise_for

    if hospitals < 1:
        raise InputError(f"--hospitals {hospitals}: a federation has at least one")
    one_of("--task", task, PRESETS)
    if out is not None and (out.exists() or out.suffix != ".toml"):
        raise InputError(f"--out {out}: give a new file that ends in .toml")
    delta = delta_by_rule(hospitals) if delta is None else delta
    target, setting = Target(epsilon), Setting(delta)
    changes = {"budget.epsilon": epsilon, "privacy.delta": delta, "name": f"plan-{hospitals}-hospitals"}
    experiment = Experiment.load(PRESETS[task], changes)
    table = make_table(
        f"{hospitals} hospitals, ε = {epsilon:g} for each, δ = {delta:g}: signal over noise of a whole run",
        "what trains", *numbers("parameters", "signal / noise"), "the noise",
        caption="The same for any number of rounds. It does not say whether so few parameters can learn: "
        "docs/hospital-privacy-trials.md has what was measured.",
    )  # fmt: skip
    parts = parts_of(experiment.model, task)
    for part, count in parts.items():
        ratio = signal_over_noise(epsilon, delta, hospitals, count)
        table.add_row(part, f"{count:,}", f"{ratio:.2f}", _expected(ratio))
    console().print(table)
    count = parts[experiment.model.trainable]
    per_round = make_table(
        f"rounds, if {experiment.model.trainable} trains",
        *numbers("rounds", "noise multiplier z", "noise a round, in C"),
    )
    for rounds in ROUNDS:
        z = noise_for(target, setting, rounds)
        per_round.add_row(str(rounds), f"{z:.3g}", f"{noise_in_bounds(z, hospitals, count):.3g}")
    console().print(per_round)
    say(f"as much signal as noise: {most_numbers(epsilon, delta, hospitals):,} parameters")
    ratio = signal_over_noise(epsilon, delta, hospitals, count)
    say(_worth(ratio, hospitals))
    if out is not None:
        out.write_text(experiment.to_toml(defaults=False), encoding="utf-8")
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
