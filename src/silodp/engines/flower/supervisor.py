"""Keeps a program running: starts it, waits until it is ready, restarts it when it dies, stops it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from silodp.errors import InputError
from silodp.files import private_open

LONGEST_BACKOFF = 10.0  # seconds between two starts, at most

log = logging.getLogger(__name__)

# Asks the kernel to end the program when the thread that started it ends (PR_SET_PDEATHSIG), so that a
# killed coordinator leaves no server on its port; then becomes the program.
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
"""


class Supervisor:
    """Keeps one program running from `start` to `stop`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_file: Path,
        *,
        listens: str = "",
        ready: Callable[[], bool] = lambda: True,
        after_start: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            name: of the program, for the log.
            command: its arguments; the first is looked up on PATH.
            log_file: for its output; mode 0600.
            listens: its host:port; while another program has it, this one is not started.
            ready: whether it is ready; called repeatedly after a start, and may raise.
            after_start: called each time it has become ready, before it counts as up.
            environment: of the program; default: that of this process.
        """
        self._name, self._command, self._log_file, self._listens = name, command, log_file, listens
        self._ready, self._after_start, self._environment = ready, after_start, environment
        self._stop, self._up = threading.Event(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)
        self._problem = ""

    @property
    def pid(self) -> int | None:
        """Process id of the program while it is up."""
        return self._process.pid if self._process and self._up.is_set() else None

    def start(self, timeout: float = 120.0) -> None:
        """Returns when the program is up.

        Raises:
            InputError: it was not within `timeout` seconds; the end of its output is in the error.
        """
        self._thread.start()
        if not self._up.wait(timeout):
            self.stop()
            raise InputError(f"{self._name}: did not start; {self._problem or self._last_output()}")

    def _last_output(self) -> str:
        with suppress(OSError):
            return "it said: " + self._log_file.read_text(encoding="utf-8", errors="replace")[-500:]
        return "it said nothing"

    def stop(self, timeout: float = 10.0) -> None:
        """Ends the program: SIGTERM, and SIGKILL after `timeout` seconds."""
        self._stop.set()
        process = self._process
        if process and process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._end_children()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _keep(self) -> None:
        # All starts are in this thread, since the program ends with it.
        pause = 0.2
        while not self._stop.is_set():
            process = self._begin()
            if process and self._await_ready(process):
                pause = 0.2
                self._up.set()
                log.info("%s is up (process %d)", self._name, process.pid)
                while process.poll() is None and not self._stop.wait(0.1):
                    pass
                self._up.clear()
            if self._stop.is_set():
                break
            self._end_children()
            reason = f"ended with {process.poll()}" if process else f"cannot be started: {self._problem}"
            log.warning("%s %s; it is started again", self._name, reason)
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_BACKOFF)
        if self._process and self._process.poll() is None:
            self._process.terminate()

    def _end_children(self) -> None:
        """Kills the group of a program that has ended: nginx's workers would keep its port."""
        if self._process and self._process.poll() is not None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _begin(self) -> subprocess.Popen[bytes] | None:
        self._problem = ""
        if self._listens and answers(self._listens):
            self._problem = f"{self._listens} is used by another program; stop it, or give another port"
            return None
        try:
            with private_open(self._log_file, "ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _TIED, str(os.getpid()), *self._command],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    env=self._environment, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._problem = str(error)
            return None
        return self._process

    def _await_ready(self, process: subprocess.Popen[bytes]) -> bool:
        while process.poll() is None and not self._stop.wait(0.1):
            try:
                if self._ready():
                    self._after_start()
                    return True
            except Exception as error:
                log.debug("%s is not ready: %s", self._name, error)
        return False


def answers(address: str) -> bool:
    """Whether a program on this machine listens at host:port."""
    host, port = address.rsplit(":", 1)
    reached = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    with suppress(OSError), socket.create_connection((reached, int(port)), timeout=1):
        return True
    return False


def flower_environment(folder: Path) -> dict[str, str]:
    """The environment of a program of Flower: its files in `folder`, no telemetry, no other settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    return kept | {
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
