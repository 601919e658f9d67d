"""What tests of processes need: a free port, waiting, whether one has ended, and another user's."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(condition: Callable[[], bool], what: str, seconds: float = 150) -> None:
    """Waits for something that must come; it may take long on a busy machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen: {what}")
        time.sleep(0.05)


def ended(pid: int) -> bool:
    """Also where its parent has not asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def as_user(number: int, action: Callable[[], object], groups: Sequence[int] = ()) -> str:
    """What an action gives, or the kind of error it raises, in a process of that user and group.

    Only root can become another user.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups(groups)
            os.setgid(number)
            os.setuid(number)
            found = str(action())
        except BaseException as error:
            found = type(error).__name__
        os.write(writing, found.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        found = answer.read()
    os.waitpid(child, 0)
    return found
