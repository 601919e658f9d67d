"""The ledger: every release on disk before it is used, in a file that shows when it was changed.

One JSON object a line: the fields of an `Event` and `chain`, the SHA-256 of the chain so far and this event.
So anybody can count ε from it at any time, and it never lacks a release that somebody has used: a kill
between writing and using may count a release too many, never one too few.

The chain shows changes, deletions and insertions of lines. It does not show a ledger that was cut at its end
or written anew as a whole: whoever may write the file can do that. A run's other files and signed statements
name its last hash (`runs/consistency.py`, `runs/signing.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from silodp.errors import InputError, cannot_write
from silodp.privacy.events import Event, read_event

_TAIL = 128  # bytes at the end of the file that hold the last hash


@dataclass(frozen=True)
class Reading:
    """What a ledger file holds; reading changes nothing.

    Attributes:
        events: in the order in which they were recorded.
        chains: the hash that each line carries.
        size: bytes of the whole lines.
        torn: whether there is a last line without its end: a crash, or a writer at work.
    """

    events: list[Event]
    chains: list[str]
    size: int
    torn: bool


def read_ledger(path: Path) -> Reading:
    """Reads and verifies. A torn last line is left out, for the release it announced was not yet used; a line
    that was changed, taken out or put in is refused."""
    if not path.is_file():  # a pipe would be waited for
        raise InputError(f"{path}: not a regular file; restore the ledger")
    return _verified(path, path.read_bytes())


def _verified(path: Path, content: bytes) -> Reading:
    whole = content[: content.rfind(b"\n") + 1]
    events: list[Event] = []
    chains: list[str] = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            fields = json.loads(line)
            chain = fields.pop("chain")
            event = read_event(fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InputError(f"{path}, line {number}: not a ledger entry; restore the file") from None
        if chain != _link(chains[-1] if chains else "", event):
            raise InputError(
                f"{path}, line {number}: this line or one before it was changed; restore the file"
            )
        events.append(event)
        chains.append(chain)
    return Reading(events, chains, len(whole), whole != content)


class Ledger:
    """An append-only file of events, one a line; each line carries a hash of itself and all before it.

    It has one writer at a time: the file itself is locked until `close` or the end of the process, and
    must be as this writer left it before anything is added.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the ledger and changes nothing in it, not even a torn last line."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise InputError(f"{path}: not a regular file; restore the ledger")
            os.fchmod(self._descriptor, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
            reading = _verified(path, content)
        except BlockingIOError:
            self.close()
            raise InputError(f"{path}: another process is writing this ledger; wait for it") from None
        except BaseException:
            self.close()
            raise
        self.events, self.chains = reading.events, reading.chains
        self._whole, self._size, self._tail = reading.size, len(content), content[-_TAIL:]

    def close(self) -> None:
        """Unlocks the file, so that another writer may open it; nothing can be recorded afterwards."""
        self._closing()

    @property
    def head(self) -> str:
        """The hash of everything so far; empty before the first event."""
        return self.chains[-1] if self.chains else ""

    def head_after(self, events: Sequence[Event]) -> str:
        """The hash of everything up to the last of these events, which stand in the ledger."""
        return self.chains[max(self.events.index(event) for event in events)] if events else ""

    def check(self) -> None:
        """Refuses a file that is no longer what this writer left; nothing may be released then."""
        mine = os.fstat(self._descriptor)
        try:
            in_place = os.path.samestat(os.stat(self.path), mine)
        except OSError:
            in_place = False
        tail = os.pread(self._descriptor, _TAIL, max(0, self._size - _TAIL))
        if in_place and mine.st_size == self._size and tail == self._tail:
            return
        what = "was written to by another process" if in_place else "was removed or replaced"
        raise InputError(
            f"{self.path}: {what} during the run; nothing more is released. "
            "End the other process or restore the file, then resume"
        )

    def repair(self) -> None:
        """Cuts a torn last line off: the release that it announced was never used."""
        if self._size > self._whole:
            self.check()
            os.ftruncate(self._descriptor, self._whole)
            os.fsync(self._descriptor)
            self._size = self._whole
            self._tail = os.pread(self._descriptor, _TAIL, max(0, self._size - _TAIL))

    def record(self, events: Sequence[Event]) -> None:
        """Appends events and returns only when they are on disk. Call it BEFORE using the releases.

        An event that stands there already, to the digest, is the same release drawn again after a
        crash, and is not counted twice.

        Raises:
            InputError: the file is not as this writer left it, or cannot be written; then nothing may be
                released, and the file is left as it was.
        """
        self.check()
        self.repair()
        known = set(self.events)
        new = [event for event in dict.fromkeys(events) if event not in known]
        chains, lines = [self.head], ""
        for event in new:
            chains.append(_link(chains[-1], event))
            lines += json.dumps(asdict(event) | {"chain": chains[-1]}) + "\n"
        if new:
            self._append(lines.encode())
        self.events += new
        self.chains += chains[1:]
        self.check()  # a file replaced just now has taken the new lines with it

    def _append(self, content: bytes) -> None:
        """Writes all of it and waits for the disk; or takes back what was written."""
        try:
            rest = content
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:  # a full disk; nobody has used what these lines announce
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise cannot_write(self.path, error) from None
        self._size += len(content)
        self._whole = self._size
        self._tail = (self._tail + content)[-_TAIL:]


def _link(chain: str, event: Event) -> str:
    """The hash of a line: of the hash before it and the event's fields."""
    return hashlib.sha256((chain + json.dumps(asdict(event))).encode()).hexdigest()
