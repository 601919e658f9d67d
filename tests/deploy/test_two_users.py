"""Two Unix users at a hospital: whoever has the link has neither the images nor the site's key."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from network import Federation

from silodp.deploy.envelope import Request, seal
from silodp.deploy.local_socket import ask, serve

LINK, STRANGER = 64001, 64002  # users and groups that the system need not know

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def as_user(number: int, work: str, *arguments: str) -> str:
    """What a process of that user prints: a fork, which has no group but its own."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.setgroups([])
        os.setgid(number)
        os.setuid(number)
        try:
            os.write(writing, str(WORK[work](*arguments)).encode())
        except OSError as error:
            os.write(writing, type(error).__name__.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as said:
        found = said.read().decode()
    os.waitpid(child, 0)
    return found


def _ask(path: str, message: str) -> str:
    return ask(Path(path), bytes.fromhex(message), 20).hex()


WORK = {"read": lambda path: len(Path(path).read_bytes()), "list": lambda path: os.listdir(path), "ask": _ask}


@pytest.fixture
def folder() -> Iterator[Path]:
    """As the kit has it: others may pass through, and see nothing."""
    with tempfile.TemporaryDirectory(prefix="silodp-") as made:
        os.chmod(made, 0o711)
        yield Path(made)


def test_the_link_reaches_the_socket_and_nothing_else(folder: Path) -> None:
    hospitals = Federation(folder)
    site, socket = hospitals.sites["hospital-0"], folder / "run" / "site.sock"
    images = folder / "images.npz"
    images.write_bytes(b"patients")
    images.chmod(0o400)
    stop = threading.Event()
    serving = threading.Thread(target=serve, args=(socket, site.handle, {LINK}, stop), kwargs={"group": LINK})
    serving.start()
    try:
        while not socket.exists() or socket.parent.stat().st_mode & 0o777 != 0o710:
            time.sleep(0.01)
        request = seal(Request("finish", "a" * 32, "hospital-0"), hospitals.key).hex()
        answer = as_user(LINK, "ask", str(socket), request)
        reply = hospitals.opened("hospital-0", bytes.fromhex(answer))
        assert "nothing was agreed on" in reply.reason
        assert as_user(STRANGER, "ask", str(socket), request) == "PermissionError"
        for path in (images, hospitals.files("hospital-0") / "ledger.jsonl"):
            assert as_user(LINK, "read", str(path)) == "PermissionError"
        assert as_user(LINK, "list", str(hospitals.files("hospital-0"))) == "PermissionError"
    finally:
        stop.set()
        serving.join()
