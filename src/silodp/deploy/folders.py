"""Folders that appear complete or not at all, and new files with given modes."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silodp.errors import InputError
from silodp.files import sync_folder, take_lock, write_atomically


@contextmanager
def new_folder(folder: Path, replace: bool = False) -> Iterator[Path]:
    """Yields a private temporary folder that is renamed to `folder` at the end, or removed after an error.

    What a killed process has left there is removed by the next one.

    Args:
        folder: new or empty.
        replace: whether `folder` may exist; it is replaced.
    """
    folder = folder.absolute()
    if folder.resolve() == Path.cwd().resolve():
        raise InputError(f"{folder}: you are in it; give a new folder")
    if not replace and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists already and is not empty; give a new folder")
    if not folder.parent.is_dir():
        raise InputError(f"{folder}: {folder.parent} is no folder; make it first")
    place = folder.with_name(f".{folder.name}.silodp-new")
    try:
        place.mkdir()
    except FileExistsError:
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise InputError(f"{place}: belongs to another user and is in the way; remove it") from None
    place.chmod(0o700)
    with exclusive(place):
        try:
            _empty(place)
            yield place
            if replace and folder.exists():
                shutil.rmtree(folder)
            place.rename(folder)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    sync_folder(folder.parent)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Locks the folder against other processes while the block runs."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be opened ({error.strerror}); give a folder of yours, not a link to one"
        ) from None
    try:
        take_lock(descriptor, f"{folder}: another process is using it; wait for it")
        yield
    finally:
        os.close(descriptor)


def write_new(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Writes a new file with this mode, whatever the umask; it is on disk when this returns."""
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            os.fchmod(file.fileno(), mode)
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise InputError(f"{path}: exists already and is never overwritten; give a new folder") from None


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Replaces a file atomically; if root does it, the file gets the owner of its folder."""
    write_atomically(path, content)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
    path.chmod(mode)


def _empty(folder: Path) -> None:
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
