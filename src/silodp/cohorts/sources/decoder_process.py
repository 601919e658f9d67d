"""Decodes compressed pixels in another process, since some damaged files crash decoders in C.

That process runs this file as a script, so it imports nothing of silodp. A process answers one request after
the other; each thread that decodes uses an idle one, or starts one.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import select
import struct
import subprocess
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

SECONDS = 300  # for one file
_FRAME = struct.Struct("<cQ")  # whether it is an array, and the bytes that follow
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
        # -P: nothing is imported from the folder of this file.
        command = [sys.executable, "-P", __file__]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, bufsize=0)

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any]) -> tuple[bool, bytes]:
        assert self._process.stdin is not None
        until = time.monotonic() + SECONDS
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            raise Ended("the decoder has ended") from None
        kind, length = _FRAME.unpack(self._read(_FRAME.size, until))
        return kind == b"A", self._read(length, until)

    def _read(self, length: int, until: float) -> bytes:
        assert self._process.stdout is not None
        parts, pipe = bytearray(), self._process.stdout.fileno()
        while len(parts) < length:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise Ended(f"the decoder takes more than {SECONDS} seconds")
            part = os.read(pipe, min(length - len(parts), 2**20))
            if not part:
                raise Ended("the decoder crashed")
            parts += part
        return bytes(parts)

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()


@atexit.register
def _end_all() -> None:
    while _owner == os.getpid() and _idle:
        _idle.pop().end()


def _serve() -> None:
    """In the other process: answers requests, one a line, until the input ends."""
    from pydicom import config, dcmread
    from pydicom.pixels.utils import pixel_array

    config.settings.reading_validation_mode = config.IGNORE
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # some decoders print
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            out = io.BytesIO()
            array = pixel_array(dcmread(request["path"], force=True), **request["options"])
            np.save(out, array, allow_pickle=False)
            kind, content = b"A", out.getvalue()
        except Exception as error:
            kind, content = b"E", (str(error) or type(error).__name__).encode()
        answers.write(_FRAME.pack(kind, len(content)) + content)
        answers.flush()


if __name__ == "__main__":
    _serve()
