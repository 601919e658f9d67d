"""Writing files so that a reader finds the old one or the new one, for their owner alone; strict JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from silodp.errors import InputError


def private_folder(path: Path) -> None:
    """Makes a folder, and folders on the way to it; it is its owner's alone (0700) whatever the umask."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        path.chmod(0o700)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be made private ({error.strerror}); give a folder of your own on another disk"
        ) from None


def private_open(path: Path, mode: str) -> IO[Any]:
    """As `open`; the file is its owner's alone (0600) whatever the umask and whatever it was before."""
    encoding = None if "b" in mode else "utf-8"
    file = open(path, mode, encoding=encoding, opener=_opened_privately)  # noqa: SIM115
    with suppress(PermissionError):  # a disk that knows no modes: a page on a USB stick
        os.fchmod(file.fileno(), 0o600)
    return file


def _opened_privately(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Readers see the old file or the new one, never a part, even if the machine stops; mode 0600."""
    temporary = path.with_name(path.name + ".part")
    with private_open(temporary, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def refuse_filled(folder: Path, leftovers: Collection[str] = (), way_out: str = "give a new folder") -> None:
    """What is written goes into a folder that is new, or empty but for what a kill may have left there."""
    if folder.exists() and (
        not folder.is_dir() or any(left.name not in leftovers for left in folder.iterdir())
    ):
        raise InputError(f"--out {folder}: exists already; {way_out}")


def write_atomically(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def to_json(content: Any, indent: int | None = None) -> str:
    """Strict JSON: NaN and infinity become null (an ε of null is no guarantee at all)."""
    return json.dumps(_plain(content), indent=indent)


def read_object(path: Path, *keys: str, way_out: str) -> dict[str, Any]:
    """A JSON object with these keys; anything else is refused with the way out."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict) or not content.keys() >= set(keys):
        raise InputError(f"{path}: damaged; {way_out}")
    return content


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
