"""The ledger: every release on disk before it is used, in a file that shows when it was changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from silodp.errors import InputError
from silodp.privacy.events import Event, read_event


@dataclass(frozen=True)
class Reading:
    """What a ledger file holds; reading changes nothing."""

    events: list[Event]
    chains: list[str]  # the hash that each line carries
    size: int  # bytes of the whole lines
    torn: bool  # a last line without its end: a crash, or a writer at work


def read_ledger(path: Path) -> Reading:
    """Reads and verifies. A torn last line is left out, for the release it announced was not yet used; a line
    that was changed, taken out or put in is refused."""
    if not path.is_file():  # a pipe would be waited for
        raise InputError(f"{path}: not a plain file; restore the ledger")
    content = path.read_bytes()
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
    """An append-only file of events, one a line; each line carries a hash of itself and all before it."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the ledger, for one writer; a torn last line is cut off."""
        self.path = path
        self.events: list[Event] = []
        self._chains: list[str] = []
        if not path.exists():
            path.touch()
            return
        reading = read_ledger(path)
        self.events, self._chains = reading.events, reading.chains
        if reading.torn:
            with path.open("r+b") as file:
                file.truncate(reading.size)
                os.fsync(file.fileno())

    @property
    def head(self) -> str:
        """The hash of everything so far."""
        return self._chains[-1] if self._chains else ""

    def require(self, head: str) -> None:
        """Refuses a ledger that has lost what it held when it had this head: lines cut off its end."""
        if head and head not in self._chains:
            raise InputError(
                f"{self.path}: releases that the checkpoint knows of are missing at its end; restore the file"
            )

    def record(self, events: Sequence[Event]) -> None:
        """Appends events and returns only when they are on disk. Call it BEFORE using the releases.

        An event that stands there already, to the digest, is the same release drawn again after a
        crash, and is not counted twice.
        """
        known = set(self.events)
        new = [event for event in dict.fromkeys(events) if event not in known]
        chains, lines = [self.head], ""
        for event in new:
            chains.append(_link(chains[-1], event))
            lines += json.dumps(asdict(event) | {"chain": chains[-1]}) + "\n"
        if new:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        self.events += new
        self._chains += chains[1:]


def _link(chain: str, event: Event) -> str:
    return hashlib.sha256((chain + json.dumps(asdict(event))).encode()).hexdigest()
