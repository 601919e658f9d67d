"""Decodes compressed pixels in another process, since some damaged files crash decoders in C.

That process runs this file as a script, so it imports nothing of silodp. A process answers one request after
the other; each thread that decodes uses an idle one, or starts one.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

SECONDS = 300  # for one file
_idle: list[_Decoder] = []
_owner = os.getpid()


class Ended(Exception):
    """The decoder crashed, or took too long."""


def decode_apart(path: str, **options: Any) -> NDArray[Any]:
    """Runs `pydicom.pixels.pixel_array` in another process; raises ValueError for its errors."""
    global _owner
    if _owner != os.getpid():  # after a fork, these processes belong to the parent
        _idle.clear()
        _owner = os.getpid()
    decoder = _idle_one() or _Decoder()
    try:
        is_array, content = decoder.ask({"path": os.path.abspath(path), "options": options})
    except BaseException:
        decoder.end()
        raise
    _idle.append(decoder)
    if not is_array:
        raise ValueError(content.decode(errors="replace"))
    array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _idle_one() -> _Decoder | None:
    while True:
        try:
            decoder = _idle.pop()
        except IndexError:  # all are in use
            return None
        if decoder.lives:
            return decoder
        decoder.end()


class _Decoder:
    """A decoding process."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        # -P: nothing is imported from the folder of this file.
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        nothing = subprocess.DEVNULL  # some decoders print
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=[theirs.fileno()]
            )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any]) -> tuple[bool, bytes]:
        """Whether the answer is an array, and its bytes, else those of an error; `Ended` if none comes."""
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
            if self._pipe.poll(SECONDS):
                return self._pipe.recv_bytes() == b"array", self._pipe.recv_bytes()
        except (OSError, EOFError):
            raise Ended("the decoder crashed") from None
        raise Ended(f"the decoder takes more than {SECONDS} seconds")

    def end(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()


@atexit.register
def _end_all() -> None:
    while _owner == os.getpid() and _idle:
        _idle.pop().end()


def _serve(pipe: Connection) -> None:
    """In the other process: answers requests until the pipe is closed."""
    from pydicom import config, dcmread
    from pydicom.pixels.utils import pixel_array

    config.settings.reading_validation_mode = config.IGNORE
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            out = io.BytesIO()
            array = pixel_array(dcmread(request["path"], force=True), **request["options"])
            np.save(out, array, allow_pickle=False)
            kind, content = b"array", out.getvalue()
        except Exception as error:
            kind, content = b"error", (str(error) or type(error).__name__).encode()
        pipe.send_bytes(kind)
        pipe.send_bytes(content)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
