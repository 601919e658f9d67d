"""Two Unix users at a hospital: whoever has the link has neither the images nor the site's key."""

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from network import Federation
from processes import as_user, until

from silodp.deploy.envelope import Request, seal
from silodp.deploy.local_socket import ask, serve

LINK, STRANGER = 64001, 64002  # users and groups that the system need not know

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


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
        until(
            lambda: socket.exists() and socket.parent.stat().st_mode & 0o777 == 0o710, "the socket is there"
        )
        request = seal(Request("finish", "a" * 32, "hospital-0"), hospitals.key)
        answer = as_user(LINK, lambda: ask(socket, request, 20).hex())
        reply = hospitals.opened("hospital-0", bytes.fromhex(answer))
        assert "nothing was agreed on" in reply.reason
        assert as_user(STRANGER, lambda: ask(socket, request, 20)) == "PermissionError"
        for path in (images, hospitals.files("hospital-0") / "ledger.jsonl"):
            assert as_user(LINK, path.read_bytes) == "PermissionError"
        assert as_user(LINK, lambda: os.listdir(hospitals.files("hospital-0"))) == "PermissionError"
    finally:
        stop.set()
        serving.join()
