"""`silodp privacy`: what a run will cost or has cost, and signed statements of that."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from silodp.cli.completion import run_folders
from silodp.cli.options import Json, one_of
from silodp.cli.terminal import print_json, say
from silodp.errors import InputError


def privacy(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run's folder: read its ledger, verify, sum up.", autocompletion=run_folders),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="z: noise on the sum, over one intermediary's clip bound.")
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Find the noise for this ε; with --noise-multiplier, the rounds.")
    ] = None,
    unit: Annotated[str, typer.Option(help="Unit of the target: hospital or intermediary.")] = "hospital",
    neighbours: Annotated[
        str, typer.Option(help="Neighbours of the target: add-or-remove or replace-one.")
    ] = "add-or-remove",
    rounds: Annotated[int, typer.Option(help="Rounds of the run.")] = 100,
    hospitals: Annotated[int | None, typer.Option(help="Hospitals; δ follows by the paper's rule.")] = None,
    intermediaries: Annotated[int, typer.Option(help="v: parts that each hospital is split into.")] = 1,
    delta: Annotated[float | None, typer.Option(help="δ; default: 10^-k, at most 1/hospitals.")] = None,
    sample_rate: Annotated[
        float, typer.Option(help="Probability that a hospital takes part in a round.")
    ] = 1.0,
    without_replacement: Annotated[
        bool,
        typer.Option(
            "--without-replacement", help="Draw a fixed share of hospitals, not each independently."
        ),
    ] = False,
    fresh_states: Annotated[
        bool, typer.Option("--fresh-states", help="Of that share: no optimizer state outlives a round.")
    ] = False,
    accountant: Annotated[str, typer.Option(help="auto, exact, pld, prv or rdp.")] = "auto",
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="Sign a statement of what RUN cost: Ed25519 key in PEM."),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(metavar="PUBLIC_KEY", help="Check RUN against its signed statement."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run costs: ε by unit and neighbours; find noise or rounds for a target; read a ledger."""
    from silodp.experiment import delta_by_rule
    from silodp.participation import FixedFraction
    from silodp.privacy.accountants import ACCOUNTANTS
    from silodp.privacy.calibration import Setting, Target, answer
    from silodp.privacy.events import NEIGHBOURS, UNITS

    accountant = one_of("--accountant", accountant, ACCOUNTANTS)
    given = (noise_multiplier, target_epsilon, hospitals, delta)
    if run is not None:
        if any(value is not None for value in given):
            raise InputError(
                f"privacy {run}: a run brings its own noise, hospitals and δ; leave these options out"
            )
        if verify is not None:
            if sign is not None:
                raise InputError("privacy: --sign and --verify are two commands; give one of them")
            _verify_run(run, verify, as_json)
            return
        _privacy_of_run(run, accountant, as_json, sign)
        return
    if sign is not None or verify is not None:
        raise InputError("privacy: --sign and --verify are for a run; give its folder")
    if noise_multiplier is None and target_epsilon is None:
        raise InputError("privacy: give a run's folder, --noise-multiplier or --target-epsilon")
    if hospitals is not None and hospitals < 1:
        raise InputError(f"--hospitals {hospitals}: a federation has at least one")
    if delta is None and hospitals is None:
        raise InputError("privacy: give --hospitals (δ follows by the paper's rule) or --delta")
    delta = delta_by_rule(hospitals or 1) if delta is None else delta
    fixed_share = "fraction" if fresh_states else "fraction-kept"
    participation = "all" if sample_rate == 1 else fixed_share if without_replacement else "poisson"
    if participation == fixed_share and hospitals is not None and 0 < sample_rate < 1:
        sample_rate = FixedFraction(rate=sample_rate).sampling_rate(hospitals)  # so many whole hospitals
    setting = Setting(delta, intermediaries, participation, sample_rate, accountant)  # type: ignore[arg-type]
    target = None
    if target_epsilon is not None:
        wanted, relation = one_of("--unit", unit, UNITS), one_of("--neighbours", neighbours, NEIGHBOURS)
        target = Target(target_epsilon, wanted, relation)
    found = answer(setting, rounds, noise_multiplier, target)
    if as_json:
        print_json({**found.to_dict(), "hospitals": hospitals})
        return
    from silodp.cli.display_privacy import show_figures

    if target is not None:
        say(f"ε {target.epsilon:g} for one {target.unit} ({target.neighbours}): ", end="")
        say(f"noise multiplier {found.noise_multiplier:.6g}, {found.rounds} rounds\n")
    drawn = "" if participation == "all" else f", {participation} participation {sample_rate:.4g}"
    show_figures(
        f"z {found.noise_multiplier:.6g}, {found.rounds} rounds, v {intermediaries}, δ {delta:g}{drawn}",
        found.figures,
        {name: f"{value:.4g}" for name, value in found.noise_multipliers.items()},
    )


def _privacy_of_run(folder: Path, accountant: Any, as_json: bool, key: Path | None) -> None:
    from silodp.cli.display_privacy import show_statement
    from silodp.runs.statement import read_statement

    statement = read_statement(folder, accountant)
    if as_json:
        print_json(statement.to_dict())
    else:
        show_statement(statement)
    if key is not None:
        from silodp.runs.signing import STATEMENT, sign

        say(f"{folder / STATEMENT}: signed, key {sign(folder, key, accountant)}", error=True)
    if statement.problems:
        raise typer.Exit(1)


def _verify_run(folder: Path, key: Path, as_json: bool) -> None:
    from silodp.cli.display_privacy import show_verified
    from silodp.runs.signing import key_fingerprint, verify

    signed = verify(folder, key)
    if as_json:
        print_json({**signed, "verified": True, "key": key_fingerprint(key)})
    else:
        show_verified(folder, signed, key_fingerprint(key))
