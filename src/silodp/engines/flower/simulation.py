"""Flower's simulation runtime as a transport: hospitals are its nodes, and Ray's actors answer for them.

Flower and Ray run in a process group of their own, which ends with the training process, also when that is
killed. Flower chooses which actor answers for which hospital, differently each time.

Ray listens on all interfaces of the machine, and everybody who reaches an open Ray can run code on it. A Ray
that is started here requires a token that only its own processes know; an existing one (RAY_ADDRESS) is as
its owner has configured it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from silodp.engines.flower.supervisor import flower_environment
from silodp.engines.transport import Delivery, Unreachable
from silodp.errors import InputError
from silodp.files import private_open

_START = "from silodp.engines.flower.simulation_app import main; main()"
_GOODBYE = 10.0  # seconds for Ray to end by itself


def refuse_without_ray() -> None:
    """Refuses to run without Flower and Ray, which are optional; neither is imported."""
    for name in ("flwr", "ray"):
        if find_spec(name) is None:
            raise InputError(
                f"--engine flower: this needs {name}, which is not installed; pip install 'silodp[flower]'"
            )


def refuse_unreachable_ray() -> None:
    """Refuses a RAY_ADDRESS that does not answer; Ray itself would try for 15 minutes."""
    address = ray_address()
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return  # a word such as auto, which Ray knows
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"RAY_ADDRESS = {address}: it does not answer ({error}); start the cluster with "
            f"`ray start --head --port {port}`, or unset RAY_ADDRESS"
        ) from None


def ray_address() -> str:
    """RAY_ADDRESS, the address of a cluster; empty: Ray is started on this machine."""
    return os.environ.get("RAY_ADDRESS", "")


class Simulation:
    """A `Transport` over Flower's simulation; it starts with the first message that is sent."""

    def __init__(self, hospitals: Sequence[str], handler: str, cpus: int = 1, gpus: float = 0.0) -> None:
        """Starts nothing yet.

        Args:
            hospitals: their names; each is a node.
            handler: `module:function`, from bytes to bytes, called in an actor.
            cpus: of an actor, which limits how many run on a machine.
            gpus: of an actor; 0.5 lets two share one.
        """
        self._handler, self._cpus, self._gpus = handler, cpus, gpus
        self._nodes = {name: number for number, name in enumerate(hospitals)}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._folder: Path | None = None
        self._last, self._forgotten = 0, set[str]()

    @property
    def pid(self) -> int | None:
        """Process id of the simulation, which is also that of its process group."""
        return self._process.pid if self._process else None

    def connected(self) -> frozenset[str]:
        """All hospitals, whether or not the simulation has started."""
        return frozenset(self._nodes)

    def send(self, hospital: str, message: bytes) -> str:
        connection, self._last = self._started(), self._last + 1
        try:
            connection.send((str(self._last), self._nodes[hospital], message))
        except OSError:
            raise self._ended("") from None
        return str(self._last)

    def receive(self, timeout: float) -> Delivery | None:
        """As `Transport`.

        Raises:
            Unreachable: Flower or Ray could not start, or ended.
        """
        connection = self._started()
        try:
            if not connection.poll(timeout):
                return None
            ticket, content, problem = connection.recv()
        except (EOFError, OSError):
            raise self._ended("") from None
        if not ticket:
            raise self._ended(problem)
        if ticket in self._forgotten:
            self._forgotten.discard(ticket)
            return None
        return Delivery(ticket, content, problem)

    def forget(self, ticket: str) -> None:
        self._forgotten.add(ticket)

    def close(self) -> None:
        """Ends Flower and the Ray that it started, with all their processes."""
        if self._connection is not None:
            self._connection.close()  # the other side then shuts Ray down
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GOODBYE)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._connection = self._process = self._folder = None

    def _started(self) -> Connection:
        if self._connection is not None:
            return self._connection
        # Not in TMPDIR: Ray's sockets lie in it, and their paths may have 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="silodp-", dir="/tmp"))
        ours, theirs = socket.socketpair()
        with ours, theirs, private_open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(self._given(self._folder))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=(theirs.fileno(),),
                env=_environment(self._folder), start_new_session=True,
            )  # fmt: skip
            self._connection = Connection(ours.detach())
        return self._connection

    def _given(self, folder: Path) -> dict[str, Any]:
        """Settings for the process of the simulation."""
        nodes, cpus = len(self._nodes), self._cpus
        ray: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
        if not ray_address():
            # As many actors as there are hospitals, if there are processors for them; one in any case.
            here = min(len(os.sched_getaffinity(0)), cpus * nodes)
            ray |= {"num_cpus": max(here, cpus), "_temp_dir": str(folder / "ray")}
        given = {"folder": str(folder), "nodes": nodes, "handler": self._handler, "ray": ray}
        return given | {"cpus": cpus, "gpus": self._gpus}

    def _ended(self, why: str) -> Unreachable:
        """Closes the simulation, and returns the exception to raise."""
        if not why and self._folder is not None:
            said = (self._folder / "log").read_text(errors="replace").split("\n")
            why = next((line for line in reversed(said) if line.strip()), "it said nothing")
        self.close()
        return Unreachable(
            f"Flower's simulation has ended ({why[:500]}); a hospital needs {self._cpus} CPUs "
            f"(threads) and {self._gpus:g} GPUs (--gpus), which some machine of Ray must have"
        )


def _environment(folder: Path) -> dict[str, str]:
    """The environment for Flower and Ray: no telemetry, this process's modules, and a token for a new Ray."""
    token = {} if ray_address() else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return flower_environment(folder) | token | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }  # fmt: skip
