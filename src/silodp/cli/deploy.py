"""`silodp deploy …`: train across hospitals, each on its own machine."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silodp.cli.data import inspected
from silodp.cli.options import Changes, Json, Preset
from silodp.cli.terminal import print_json, say
from silodp.errors import InputError

if TYPE_CHECKING:
    from silodp.deploy.coordinator_status import CoordinatorStatus
    from silodp.deploy.status import SiteStatus

deploy = typer.Typer(
    help="Train across hospitals, each on a machine of its own (docs/deploy.md).", no_args_is_help=True
)

COMPARE = "compare it by telephone, which reveals a file that was changed on its way"


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the kit.")],
    hospitals: Annotated[str, typer.Option(metavar="A,B,C", help="Their names, with commas between.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the coordinator's proxy for hospitals.")
    ] = "localhost:8443",
    days: Annotated[int, typer.Option(help="Validity of the server's certificate.")] = 730,
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
    """At the coordinator: add a hospital that made its own keys to the roster."""
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
    days: Annotated[int, typer.Option(help="Validity of the certificate.")] = 730,
) -> None:
    """At the coordinator: issue a new server certificate before the old one expires."""
    from silodp.deploy.kit import renew as issue

    say(f"{folder}: server.crt is new and valid until {issue(folder, days)}; restart proxy and coordinator")


Kit = Annotated[Path, typer.Argument(metavar="DIR", help="The kit, or its folder for the coordinator.")]
Own = Annotated[Path, typer.Argument(metavar="DIR", help="The hospital's folder of the kit.")]
Data = Annotated[Path | None, typer.Option(help="The hospital's images; default: as site.toml says.")]


@deploy.command()
def coordinator(
    folder: Kit,
    no_proxy: Annotated[
        bool, typer.Option("--no-proxy", help="Do not start nginx, as another proxy is used.")
    ] = False,
) -> None:
    """At the coordinator: start what hospitals connect to. Stops with Ctrl-C or SIGTERM."""
    from silodp.deploy.programs import run_coordinator

    run_coordinator(folder, _stopped(), proxy=not no_proxy)


@deploy.command()
def hospital(folder: Own, data: Data = None) -> None:
    """At a hospital: check the images, then start its site and its link. Stops with Ctrl-C or SIGTERM."""
    from silodp.deploy.programs import run_hospital

    stop = _stopped()
    _check_data(folder, data)
    run_hospital(folder, data, stop)


@deploy.command()
def site(folder: Own, data: Data = None) -> None:
    """At a hospital: start only its site, which has data but no network (to run as two users)."""
    from silodp.deploy.programs import run_site

    run_site(folder, data, _stopped())


@deploy.command()
def link(folder: Own) -> None:
    """At a hospital: start only its link, which has network but no data (to run as two users)."""
    from silodp.deploy.programs import run_link

    run_link(folder, _stopped())


@deploy.command()
def run(
    folder: Kit,
    experiment: Preset = "prostate-hospital",
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; default DIR/runs/NAME-1, -2, …")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --out, or the last one that was started."),
    ] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds for all hospitals to answer before round one.")
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """At the coordinator: train an experiment with the hospitals of the roster."""
    from silodp.cli.display import progress
    from silodp.cli.training import interruptible, print_result
    from silodp.deploy.config import coordinator_folder
    from silodp.experiment import Experiment
    from silodp.runs.folder import read_experiment
    from silodp.runs.places import new_folder

    place = coordinator_folder(folder)
    begun = (out or _last_run(place / "runs")) if resume else None
    loaded = Experiment.load(experiment, changes or []) if begun is None else read_experiment(begun)

    from contextlib import closing, nullcontext

    from silodp.deploy.programs import connect
    from silodp.deploy.run import resume_deployed, run_deployed

    coordinator = connect(folder, patience, loaded.deployment.deadline)
    with (
        closing(coordinator.transport),
        nullcontext(begun) if begun else new_folder(out, loaded.name, str(place / "runs")) as path,
        interruptible(f"`silodp deploy run {folder} --resume --out {path}`"),
        progress(loaded.name, loaded.rounds) as (show, _),
    ):
        if begun is not None:
            result = resume_deployed(path, coordinator, on_round=show)
        else:
            result = run_deployed(loaded, coordinator, out=path, on_round=show)
    print_result(result, as_json)


@deploy.command()
def status(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The kit, the coordinator's or a hospital's.")
    ],
    as_json: Json = False,
) -> None:
    """Print the status and what needs attention; exit code 1 if anything does."""
    from silodp.deploy.config import SITE

    found: SiteStatus | CoordinatorStatus
    if (folder / SITE).is_file():
        from silodp.deploy.status import site_status

        found = site_status(folder)
    else:
        from silodp.deploy.coordinator_status import coordinator_status

        found = coordinator_status(folder)
    if as_json:
        print_json(found)
    else:
        from silodp.cli.display_deployed import show_status

        show_status(found)
    if found["needs"]:
        raise typer.Exit(1)


def _last_run(folder: Path) -> Path:
    """The run that was started last."""
    begun = [path.parent for path in folder.glob("*/experiment.toml")]
    if not begun:
        raise InputError(f"--resume: no run was started in {folder}; give its folder with --out")
    return max(begun, key=lambda path: (path / "experiment.toml").stat().st_mtime)


def _stopped() -> threading.Event:
    """Set by SIGTERM and Ctrl-C."""
    from silodp.deploy.programs import stop_on_signals

    logging.getLogger("silodp").setLevel(logging.INFO)
    return stop_on_signals()


def _check_data(folder: Path, data: Path | None) -> None:
    """Checks the files as `silodp data check` does, and refuses bad ones before anything connects."""
    from silodp.deploy.config import read_site

    given = read_site(folder).cohort.given(folder, data)
    if "path" not in given:
        return
    from silodp.cli.display import counting
    from silodp.cli.display_data import show_findings
    from silodp.deploy.own_data import settings_of_one

    with counting("reading files") as on_read:
        hospitals = settings_of_one(given, on_read).hospitals
    if hospitals == 1:  # else as the files, or site.toml, say
        given["hospitals"] = 1
    findings, _, _ = inspected(given)
    show_findings(findings)
    if not findings.is_clean:
        raise InputError(f"{given['path']}: correct what is listed above, then start again")
