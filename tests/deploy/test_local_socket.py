"""A Unix socket between two users: who may ask, and what a caller cannot break."""

import logging
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import as_user, until

from silodp.deploy import local_socket
from silodp.deploy.local_socket import ask, serve
from silodp.errors import InputError

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path that other users may pass through."""
    made = Path(tempfile.mkdtemp(prefix="silodp-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@contextmanager
def serving(
    path: Path, handle: Callable[[bytes], bytes] = lambda question: question, group: int | None = None
) -> Iterator[None]:
    stop, mine = threading.Event(), {os.getuid()}
    thread = threading.Thread(
        target=serve, args=(path, handle, mine, stop), kwargs={"patience": 1.0, "group": group}
    )
    thread.start()
    try:
        until(lambda: listens(path), "the socket is there")
        yield
    finally:
        stop.set()
        thread.join()


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def send(path: Path, content: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    connection.sendall(content)
    return connection


@pytest.mark.parametrize("size", [0, 1, 31_000_000])
def test_bytes_come_back_exactly(folder: Path, size: int) -> None:
    message = os.urandom(size)
    with serving(folder / "s/site"):
        assert ask(folder / "s/site", message, 60) == message


def test_modes_and_what_is_left_at_the_end(folder: Path) -> None:
    path = folder / "s/site"
    with serving(path):
        assert path.stat().st_mode & 0o777 == 0o660
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.exists()
    with serving(path, group=os.getgid()):
        assert path.parent.stat().st_mode & 0o777 == 0o710
    with pytest.raises(FileNotFoundError):
        ask(path, b"", 1)


def test_a_socket_that_a_killed_process_left_is_replaced_and_one_in_use_is_not(folder: Path) -> None:
    path = folder / "s/site"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(ConnectionRefusedError):
        ask(path, b"", 1)
    with serving(path):
        assert ask(path, b"new", 60) == b"new"
        with pytest.raises(InputError, match="another process serves here"):
            serve(path, lambda question: question, set(), threading.Event())
        assert ask(path, b"still", 60) == b"still"


def test_a_caller_that_dies_stalls_or_sends_garbage_is_survived(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "s/site"

    def strict(question: bytes) -> bytes:
        if question == b"bad":
            raise OSError("the site's disk is full")
        return question

    with caplog.at_level(logging.WARNING), serving(path, strict):
        send(path, b"").close()
        send(path, b"\x00\x00").close()
        send(path, struct.pack(">Q", 10) + b"half").close()
        with send(path, struct.pack(">Q", 2**63)) as greedy:
            assert greedy.recv(1) == b""
        with send(path, struct.pack(">Q", local_socket.LARGEST) + b"x" * 100) as stalling:
            assert stalling.recv(1) == b""  # after `patience`
        with pytest.raises(local_socket.Interrupted):
            ask(path, b"bad", 60)
        send(path, struct.pack(">Q", 20_000_000) + bytes(20_000_000)).close()  # and takes no answer
        assert ask(path, b"good", 60) == b"good"
    assert "at most 2,147,483,647 are taken" in caplog.text
    assert "timed out" in caplog.text
    assert "could not be answered" in caplog.text


def test_who_asks_gives_up_in_time(folder: Path) -> None:
    path, go = folder / "s/site", threading.Event()
    with serving(path, lambda question: bytes(go.wait())):
        with pytest.raises(TimeoutError):
            ask(path, b"?", 0.3)
        go.set()


def test_places_that_do_not_do(folder: Path) -> None:
    stop = threading.Event()
    stop.set()
    for mode in (0o711, 0o701, 0o770, 0o720):  # who writes there could put a socket of his own in its place
        folder.chmod(mode)
        with pytest.raises(InputError, match="open to other users"):
            serve(folder / "site", lambda question: question, {0}, stop)
        assert folder.stat().st_mode & 0o777 == mode
    (folder / "s").mkdir(mode=0o700)
    (folder / "s/site").write_text("a file")
    with pytest.raises(InputError, match="is not a socket"):
        serve(folder / "s/site", lambda question: question, {0}, stop)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_by_the_folder_and_one_of_the_group_by_the_kernels_word(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, asked = folder / "s/site", []

    def note(question: bytes) -> bytes:
        asked.append(question)
        return question

    with serving(path, note):
        assert as_user(NOBODY, lambda: ask(path, b"let me in", 30)) == "PermissionError"
    with caplog.at_level(logging.WARNING), serving(path, note, group=NOBODY):
        assert as_user(NOBODY, lambda: ask(path, b"let me in", 30)) == "Interrupted"
        assert ask(path, b"mine", 60) == b"mine"
    assert asked == [b"mine"]
    assert f"refused a call of user {NOBODY}" in caplog.text
