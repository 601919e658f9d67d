"""The long-running programs: a hospital's site and link, and the coordinator's SuperLink with its proxy."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from silodp.deploy.config import coordinator_folder, read_coordinator, read_site
from silodp.deploy.roster import ROSTER, read_roster
from silodp.errors import InputError
from silodp.files import private_folder

if TYPE_CHECKING:
    from silodp.deploy.engine import Coordinator
    from silodp.engines.flower.supervisor import Supervisor

log = logging.getLogger("silodp")

LONGEST_ANSWER = 24 * 3600.0  # seconds that a site may train for one answer


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; for the main thread of a process."""
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        # Not here: the signal may have come while this very thread held the event's lock.
        threading.Thread(target=stop.set).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def run_site(folder: Path, data: Path | None, stop: threading.Event) -> None:
    """Runs a hospital's site, which has data, model and limits and no network, until `stop` is set.

    It answers the link over its socket, and serves its page on loopback.
    """
    import torch

    from silodp.deploy.keys import read_public_key, read_signing_key
    from silodp.deploy.local_socket import serve
    from silodp.deploy.own_data import loader
    from silodp.deploy.pages import serve_site_page
    from silodp.deploy.site import Site

    settings = read_site(folder)
    torch.set_num_threads(1)  # results depend on them, so each experiment sets its own number; until then one
    site = Site(
        folder / "state",
        settings.name,
        read_signing_key(folder / "signing.key"),
        read_public_key(folder / "coordinator.pub"),
        settings.limits,
        loader(settings, folder, data),
        settings.device,
    )
    user, group = settings.link_ids()
    allowed = {user, os.getuid()}
    log.info("%s: waits for the coordinator's requests", settings.name)
    with serve_site_page(folder, settings.page_port):
        serve(settings.socket_path(folder), site.handle, allowed, stop, group=group)


def run_link(folder: Path, stop: threading.Event) -> None:
    """Runs a hospital's link, which has the connection and the node's key but no data."""
    from silodp.deploy.local_socket import ask
    from silodp.engines.flower.link import run_link as carry

    settings = read_site(folder)
    socket, ca, key = settings.socket_path(folder), folder / "ca.crt", folder / "node.key"
    carry(settings.superlink, ca, key, lambda message: ask(socket, message, LONGEST_ANSWER), stop)


def run_hospital(folder: Path, data: Path | None, stop: threading.Event) -> None:
    """Runs both, each in a process of its own that is restarted when it dies, until `stop` is set."""
    from silodp.engines.flower.supervisor import Supervisor

    settings = read_site(folder)
    command = _own_command()
    where = [str(folder.absolute())]
    own = ["--data", str(data.absolute())] if data is not None else []
    log_of = _logs(folder)
    socket = settings.socket_path(folder)
    programs = [
        Supervisor("site", [*command, "site", *where, *own], log_of / "site.log", ready=socket.exists),
        Supervisor("link", [*command, "link", *where], log_of / "link.log"),
    ]
    with _kept(programs):
        log.info("%s: site and link are running; their logs are in %s", settings.name, log_of)
        stop.wait()


def run_coordinator(folder: Path, stop: threading.Event, *, proxy: bool = True) -> None:
    """Runs the SuperLink on loopback behind nginx, and the coordinator's page, until `stop` is set."""
    from silodp.deploy.pages import serve_coordinator_page
    from silodp.engines.flower.proxy import proxy as start_proxy
    from silodp.engines.flower.superlink import superlink

    place, settings = coordinator_folder(folder), read_coordinator(folder)
    roster, log_of = read_roster(place / ROSTER), _logs(place)
    kept = [superlink(place, settings.port, roster.nodes)]
    if proxy:
        (place / "proxy").mkdir(mode=0o700, exist_ok=True)
        kept.append(start_proxy(place / "nginx.conf", log_of / "proxy.log"))
    with _kept(kept), serve_coordinator_page(place, settings.page_port):
        log.info("hospitals reach this coordinator at %s; its SuperLink is up", settings.address)
        stop.wait()


def connect(folder: Path, patience: float = 600.0, deadline: float = 600.0) -> Coordinator:
    """Connects to the SuperLink of a running coordinator, with the coordinator's keys.

    Args:
        folder: of the kit or the coordinator.
        patience: seconds within which all hospitals must answer before round one.
        deadline: of a round, in seconds; older messages are not delivered.
    """
    from silodp.deploy.engine import Coordinator
    from silodp.deploy.keys import read_signing_key
    from silodp.deploy.status import REFUSALS
    from silodp.engines.flower.grid import FlowerTransport

    place, settings = coordinator_folder(folder), read_coordinator(folder)
    roster = read_roster(place / ROSTER)
    if roster.expected or not roster.hospitals:
        missing = ", ".join(roster.expected) or "all hospitals"
        raise InputError(
            f"{place / ROSTER}: the keys of {missing} are missing; add them with `silodp deploy admit`"
        )
    superlink, secret = f"127.0.0.1:{settings.port}", place / "superexec.secret"
    return Coordinator(
        FlowerTransport(superlink, place / "ca.crt", secret, roster.nodes, ttl=max(patience, deadline)),
        read_signing_key(place / "signing.key"),
        {member.name: member.signing_key for member in roster.hospitals},
        patience,
        refusals=_logs(place) / REFUSALS,
    )


def _own_command() -> list[str]:
    """The command `silodp deploy`, started in the same way as this process."""
    words = sys.orig_argv
    if "deploy" not in words:  # from Python
        return [sys.executable, "-c", "from silodp.cli import main; main()", "deploy"]
    return [sys.executable, *words[1 : words.index("deploy") + 1]]


def _logs(folder: Path) -> Path:
    private_folder(folder / "log")
    return folder / "log"


@contextmanager
def _kept(programs: Sequence[Supervisor]) -> Iterator[None]:
    """Keeps programs running until the end of the block; they are restarted when they die."""
    with ExitStack() as stack:
        for program in programs:
            program.start()
            stack.callback(program.stop)
        yield
