"""A program is begun again when it dies, and ends with who keeps it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ended, until

from silodp.engines.flower.supervisor import Supervisor
from silodp.errors import InputError

pytestmark = pytest.mark.waits

KEEPER = """
import sys, time
from pathlib import Path
from silodp.engines.flower.supervisor import Supervisor
kept = Supervisor("sleep", ["sleep", "600"], Path(sys.argv[1]))
kept.start()
print(kept.pid, flush=True)
time.sleep(600)
"""


def test_a_program_that_dies_is_begun_again(tmp_path: Path) -> None:
    done: list[int] = []
    kept = Supervisor("sleep", ["sleep", "600"], tmp_path / "log", after_start=lambda: done.append(1))
    kept.start()
    first = kept.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: kept.pid not in (None, first), "it is begun again")
    second = kept.pid
    kept.stop()
    assert second is not None
    assert ended(second)
    assert len(done) == 2
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_children_of_a_killed_program_do_not_outlive_it(tmp_path: Path) -> None:
    """As nginx's workers would, on nginx's port."""
    command = ["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/child.$$; wait"]
    kept = Supervisor("sh", command, tmp_path / "log")
    kept.start()
    until(lambda: any(path.stat().st_size for path in tmp_path.glob("child.*")), "it has a child")
    child = int(next(tmp_path.glob("child.*")).read_text())
    first = kept.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: ended(child), "its child has gone, too")
    until(lambda: kept.pid not in (None, first), "it is begun again")
    kept.stop()


def test_what_does_not_start_says_why(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no such port; exit 1"]
    kept = Supervisor("it", command, tmp_path / "log", ready=lambda: False)
    with pytest.raises(InputError, match="it: did not start; it said: no such port"):
        kept.start(timeout=6)


def test_a_port_that_another_has_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        kept = Supervisor("it", ["sleep", "600"], tmp_path / "log", listens=address)
        with pytest.raises(InputError, match=f"{address} is used by another program"):
            kept.start(timeout=1)
    assert not (tmp_path / "log").exists()


def test_a_killed_keeper_leaves_nothing_behind(tmp_path: Path) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdout is not None
    pid = int(keeper.stdout.readline())
    assert not ended(pid)
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()
    until(lambda: ended(pid), "the program ended with its keeper")
