"""`silodp audit`: an empirical test of the default mechanism or of an experiment's own."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from silodp.cli.completion import experiments
from silodp.cli.options import Changes, Json
from silodp.cli.terminal import print_json


def audit(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="A preset's name or a TOML file, whose mechanism is audited at small size.",
            autocompletion=experiments,
        ),
    ] = None,
    changes: Changes = None,
    runs: Annotated[
        int, typer.Option(help="Federations of each kind: without a canary, with a part, all.")
    ] = 500,
    rounds: Annotated[int, typer.Option(help="Rounds of each federation.")] = 4,
    hospitals: Annotated[int, typer.Option(help="Hospitals, the canary among them.")] = 3,
    confidence: Annotated[float, typer.Option(help="Of each bound.")] = 0.99,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="z; default: the experiment's, or 3.")
    ] = None,
    intermediaries: Annotated[int | None, typer.Option(help="v; default: the experiment's, or 3.")] = None,
    clipping: Annotated[
        str | None, typer.Option(help="quantile or fixed; default: the experiment's.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ; default: the paper's rule.")] = None,
    entropy: Annotated[
        str | None,
        typer.Option(help="seed, or system: noise that no other audit can repeat."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers in the audit.")] = None,
    as_json: Json = False,
) -> None:
    """Put ε to the test: train many small federations with and without a canary and tell them apart."""
    from silodp.attacks.audit import EXPERIMENT, AuditSettings
    from silodp.attacks.audit import audit as run_audit
    from silodp.cli.display import counting
    from silodp.cli.display_privacy import show_audit
    from silodp.experiment import Experiment

    options: dict[str, Any] = {
        "privacy.noise_multiplier": noise_multiplier,
        "intermediaries.rule": None if intermediaries is None else "fixed",
        "intermediaries.count": intermediaries,
        "clipping.rule": clipping,
        "privacy.delta": delta,
        "privacy.entropy": entropy,
        "seed": seed,
    }
    wanted = [*(changes or []), *(f"{key}={value}" for key, value in options.items() if value is not None)]
    loaded = (
        Experiment.build(EXPERIMENT.model_dump(exclude_none=True), wanted)
        if experiment is None
        else Experiment.load(experiment, wanted)
    )
    settings = AuditSettings(loaded, runs, rounds, hospitals, confidence)
    with counting("federations") as on_run:
        found = run_audit(settings, on_run=on_run)
    if as_json:
        print_json(found.to_dict())
    else:
        show_audit(found)
