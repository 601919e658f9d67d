"""Private, atomic writing of files, and reading of regular files with a size limit."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import stat
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from silodp.errors import InputError, cannot_write

TEXT = 2**29  # bytes; no list, table or record of a run is larger


def default_cache() -> Path:
    """Where decoded images of this user are kept unless `cohort.cache` names another folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "silodp"


def private_folder(path: Path) -> None:
    """Creates a folder and its parents; the folder gets mode 0700 whatever the umask."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        path.chmod(0o700)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be made private ({error.strerror}); give a folder of your own on another disk"
        ) from None


def private_open(path: Path, mode: str) -> IO[Any]:
    """As `open`; the file gets mode 0600 whatever the umask and whatever its mode was before."""
    encoding = None if "b" in mode else "utf-8"
    file = open(path, mode, encoding=encoding, opener=partial(os.open, mode=0o600))  # noqa: SIM115
    with suppress(PermissionError):  # a file system without modes, such as a USB stick's
        os.fchmod(file.fileno(), 0o600)
    return file


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yields a binary file that replaces `path` when the block ends; mode 0600.

    Guarantee: readers see the old file or the new one, never a part, even if the machine stops. Where writing
    fails, as on a full disk, the old file stays and nothing else is left.
    """
    temporary = path.with_name(path.name + ".part")
    watched: _Watched | None = None
    try:
        with private_open(temporary, "wb") as file:
            watched = _Watched(file)
            yield watched  # type: ignore[misc]
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # torch.save turns the error of a full disk into one of its own.
        cause = error if isinstance(error, OSError) else watched.failed if watched else None
        if cause is None:
            raise
        raise cannot_write(path, cause) from None
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Returns when the names in a folder are on disk."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        os.close(directory)


class _Watched:
    """A file being written that remembers the error of a failed write."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.failed: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.failed = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def open_plain(path: Path, most: int = TEXT) -> BinaryIO:
    """Opens a regular file of at most `most` bytes; refuses pipes and devices instead of blocking."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size <= most:
        return file
    file.close()
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: not a regular file; give one that is")
    raise InputError(f"{path}: {found.st_size:,} bytes, and at most {most:,} are read")


def read_plain(path: Path, most: int = TEXT) -> bytes:
    """Reads a regular file up to the size it says it has; files in /proc, which say 0, read as empty."""
    with open_plain(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: Path) -> str:
    """Reads UTF-8 text; raises UnicodeDecodeError, a ValueError, where it is not."""
    return read_plain(path).decode("utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file; raises InputError for one that is not valid, and OSError."""
    try:
        return tomllib.loads(read_text(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or a number with too many digits
        raise InputError(f"{path}: not valid TOML ({error})") from None


def read_json(path: Path, most: int = TEXT) -> Any:
    """Reads a JSON file; raises ValueError or OSError, whatever is wrong with it."""
    return parse_json(read_plain(path, most))


def parse_json(text: bytes) -> Any:
    """Parses JSON in UTF-8; raises ValueError whatever is wrong with it."""
    try:
        return json.loads(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


Record = TypeVar("Record")


def as_record(kind: type[Record], content: Any) -> Record:
    """Builds a dataclass or TypedDict from JSON values.

    Raises:
        ValueError: a field is missing or has another type or a value that its annotation excludes; or
            there is a field that the kind does not have and its configuration forbids.
    """
    return _adapter(kind).validate_json(json.dumps(content), strict=True)  # type: ignore[arg-type, no-any-return]


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def plain_name(text: str) -> str:
    """A name for a file or folder: what is no letter or number becomes _, but for . and -."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in text) or "_"


def key_of(content: Any) -> str:
    """A name for JSON content, 24 hex digits: equal content has the same name."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take_lock(file: IO[Any] | int, busy: str = "") -> None:
    """Locks an open file until it is closed: waits for its holder, or refuses with the error `busy`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
    except BlockingIOError:
        raise InputError(busy) from None


def is_held(path: Path) -> bool:
    """Whether any process, this one included, holds a lock (`flock`) on a file; False where there is no file.

    It takes a shared lock for a moment: a process that starts just then is told to try again.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_folder(folder: Path) -> None:
    """Removes a folder and its content, if it is one; the target of a link stays."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)


def refuse_filled(folder: Path, leftovers: Collection[str] = (), way_out: str = "") -> None:
    """Refuses an output folder that is not new or empty, except for files that a kill may have left."""
    if folder.exists() and (
        not folder.is_dir() or any(left.name not in leftovers for left in folder.iterdir())
    ):
        new = f"give a new {'folder' if folder.is_dir() else 'file'}"
        raise InputError(f"--out {folder}: exists already; {way_out or new}")


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file as `replacing` does."""
    with replacing(path) as file:
        file.write(content)


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Writes `to_json` of the content and a line feed, as `replacing` does."""
    write_atomically(path, (to_json(content, indent) + "\n").encode())


def to_json(content: Any, indent: int | None = None) -> str:
    """Strict JSON: NaN and infinity become null (an ε of null is no guarantee at all)."""
    return json.dumps(_plain(content), indent=indent)


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
