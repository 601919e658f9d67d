"""Bytes between two processes on one machine, over a Unix socket that checks the caller's user.

A frame is a length of eight bytes and as many bytes of content; a request is one frame, its answer another.
The server asks the kernel for the caller's user (SO_PEERCRED), which no caller can forge.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from silodp.errors import InputError

LARGEST = 2**31 - 1  # bytes of a frame: 250 million parameters twice over
PATIENCE = 30.0  # seconds that a caller may take to send its request, or to receive its answer
_LENGTH, _PEER = struct.Struct(">Q"), struct.Struct("3i")
_PIECE = 2**20

log = logging.getLogger(__name__)


class Interrupted(ConnectionError):
    """The other side closed the connection, or sent something that is not a frame."""


def ask(path: Path, message: bytes, timeout: float) -> bytes:
    """Sends a request and returns the answer.

    Raises:
        OSError: nobody listens (FileNotFoundError, ConnectionRefusedError), this user is refused
            (PermissionError, or Interrupted where the server closes), or no answer came within `timeout`
            seconds (TimeoutError).
    """
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        try:
            _write(connection, message, deadline)
            return _read(connection, deadline)
        except (BrokenPipeError, ConnectionResetError):
            raise Interrupted(f"{path}: the other side closed before it answered") from None


def serve(
    path: Path,
    handle: Callable[[bytes], bytes],
    allowed_uids: Collection[int],
    stop: threading.Event,
    *,
    patience: float = PATIENCE,
    group: int | None = None,
) -> None:
    """Answers requests, one at a time, until `stop` is set. Blocks.

    A caller whose user is not in `allowed_uids` is logged and refused before anything is read. One that sends
    no frame, sends too slowly or dies costs at most `patience` seconds. If `handle` raises, that is logged,
    and the caller gets no answer.

    Args:
        path: of the socket; made with mode 0660. A socket that a killed process left is replaced.
        handle: from a request to its answer.
        allowed_uids: users that are answered.
        stop: set from another thread or a signal handler; noticed within half a second.
        patience: seconds for one caller.
        group: of the callers, where they are other users: the socket's folder, which is made if need be,
            gets this group and mode 0710. This process must be a member of it. None: mode 0700.
    """
    with _listening(path, group) as server:
        while not stop.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOBUFS):
                    log.warning("%s: a caller could not be taken (%s)", path, error.strerror)
                    stop.wait(0.5)
                    continue
                raise
            with connection:
                _answer(connection, handle, allowed_uids, patience)


def _answer(
    connection: socket.socket,
    handle: Callable[[bytes], bytes],
    allowed_uids: Collection[int],
    patience: float,
) -> None:
    # The kernel's word, which no caller can forge: process, user and group at the other end.
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid not in allowed_uids:
        log.warning("refused a call of user %d (process %d): only %s may", uid, pid, sorted(allowed_uids))
        return
    try:
        question = _read(connection, time.monotonic() + patience)
        try:
            answer = handle(question)
        except Exception:
            log.exception("a call of user %d (process %d) could not be answered", uid, pid)
            return
        _write(connection, answer, time.monotonic() + patience)
    except (OSError, MemoryError) as error:  # the caller died, or sent something invalid or nothing
        log.warning("a call of user %d (process %d) failed: %s", uid, pid, error)


@contextlib.contextmanager
def _listening(path: Path, group: int | None) -> Iterator[socket.socket]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.parent.stat().st_mode & 0o027:  # such as /tmp, which must not be closed to others
            raise InputError(
                f"{path.parent}: open to other users; give the socket a folder of its own (0700)"
            )
        path.parent.chmod(0o700)  # closed to others until the socket has its mode
        _remove_stale(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(path))
            mine = os.stat(path).st_ino
            path.chmod(0o660)
            if group is not None:
                os.chown(path, -1, group)
                os.chown(path.parent, -1, group)
                path.parent.chmod(0o710)
            server.listen(8)
            server.settimeout(0.5)
            try:
                yield server
            finally:
                with contextlib.suppress(OSError):
                    if os.stat(path).st_ino == mine:  # not that of a later process
                        path.unlink()
    except PermissionError as error:
        raise InputError(
            f"{path}: no socket can be made here ({error.strerror}); give another folder"
        ) from None


def _remove_stale(path: Path) -> None:
    """Removes a socket that a killed process left; refuses one that answers."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InputError(f"{path}: exists and is not a socket; give another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass
    raise InputError(f"{path}: another process serves here already; stop it first")


def _write(connection: socket.socket, content: bytes, deadline: float) -> None:
    for part in (_LENGTH.pack(len(content)), content):
        view = memoryview(part)
        while view:
            connection.settimeout(_left(deadline))
            view = view[connection.send(view[:_PIECE]) :]


def _read(connection: socket.socket, deadline: float) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    if length > LARGEST:
        raise Interrupted(f"a frame of {length:,} bytes; at most {LARGEST:,} are taken")
    return bytes(_exactly(connection, length, deadline))


def _exactly(connection: socket.socket, count: int, deadline: float) -> bytearray:
    # Grows with what is received: a caller that announces 2 GB and sends nothing costs no memory.
    got = bytearray()
    while len(got) < count:
        connection.settimeout(_left(deadline))
        piece = connection.recv(min(_PIECE, count - len(got)))
        if not piece:
            raise Interrupted(f"the other side closed after {len(got):,} of {count:,} bytes")
        got += piece
    return got


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
