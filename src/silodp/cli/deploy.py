"""`silodp deploy …`: train across hospitals, each on its own machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.terminal import say

deploy = typer.Typer(
    help="Train across hospitals, each on a machine of its own (docs/deploy.md).", no_args_is_help=True
)

COMPARE = "compare it by telephone; whoever changed a file on its way cannot change that"


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the kit.")],
    hospitals: Annotated[str, typer.Option(metavar="A,B,C", help="Their names, with commas between.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where hospitals reach the coordinator's proxy.")
    ] = "localhost:8443",
    days: Annotated[int, typer.Option(help="For which the server's certificate is valid.")] = 730,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Each hospital makes its own keys with `deploy join`.")
    ] = False,
) -> None:
    """Make a kit: a folder for the coordinator and one for each hospital."""
    from silodp.deploy.kit import init as make_kit

    names = [name.strip() for name in hospitals.split(",")] if hospitals.strip() else []
    kit = make_kit(folder, names, address, days, with_keys=not without_keys)
    say(f"{folder / 'coordinator'}: for the machine that hospitals reach as {address}; see its README.md")
    say(f"  fingerprint {kit.coordinator}: tell it to the hospitals by telephone")
    for name, mark in kit.hospitals.items():
        say(f"{folder / 'hospitals' / name}: hand it to {name}, then delete it here; fingerprint {mark}")
    if without_keys:
        say(f"next: `silodp deploy join FOLDER --name NAME` at {', '.join(names)}; then here, for each,")
        say(f"  `silodp deploy admit {folder} NAME.join.toml`")


@deploy.command()
def join(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder, which stays here.")],
    name: Annotated[str, typer.Option(help="Of this hospital, as agreed with the coordinator.")],
) -> None:
    """At a hospital: make its keys, and a file with their public halves for the coordinator."""
    from silodp.deploy.keys import fingerprint
    from silodp.deploy.kit import join as make_keys

    member = make_keys(folder, name)
    say(f"{folder}: the private keys of {name}; they stay here")
    say(f"{folder / f'{name}.join.toml'}: send this file, and no other, to the coordinator")
    say(f"  fingerprint {fingerprint(member.signing_key)}: {COMPARE}")


@deploy.command()
def admit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The kit.")],
    file: Annotated[Path, typer.Argument(metavar="NAME.join.toml", help="As `deploy join` made it.")],
) -> None:
    """At the coordinator: take a hospital that made its own keys into the roster."""
    from silodp.deploy.keys import fingerprint
    from silodp.deploy.kit import admit as take_in
    from silodp.deploy.roster import read_join

    site = take_in(folder, file)
    member = read_join(file)
    say(f"{member.name} is in the roster; fingerprint {fingerprint(member.signing_key)}: {COMPARE}")
    say(f"{site}: send it to {member.name}, who copies it into the folder with its keys")


@deploy.command()
def renew(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The kit, with ca.key in it.")],
    days: Annotated[int, typer.Option(help="For which the certificate is valid.")] = 730,
) -> None:
    """At the coordinator: a new server certificate before the old one ends."""
    from silodp.deploy.kit import renew as issue

    say(f"{folder}: server.crt is new and valid until {issue(folder, days)}; restart proxy and coordinator")
