"""The ledger: every release on disk before it is used, in a file that shows when it was changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from silodp.errors import InputError
from silodp.privacy.events import Event


class Ledger:
    """An append-only file of events, one a line; each line carries a hash of itself and all before it."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the ledger. A torn last line (a crash while writing) is dropped, for the release
        it announced was not yet used; a line that was changed is refused."""
        self.path = path
        self.events: list[Event] = []
        self._chain = ""
        if not path.exists():
            path.touch()
            return
        whole = b""
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break
            self._read(number, line)
            whole += line
        if whole != path.read_bytes():
            with path.open("r+b") as file:
                file.truncate(len(whole))
                os.fsync(file.fileno())

    def _read(self, number: int, line: bytes) -> None:
        try:
            fields = json.loads(line)
            chain = fields.pop("chain")
            event = Event(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(f"{self.path}, line {number}: not a ledger entry; restore the file") from None
        self._chain = _link(self._chain, event)
        if chain != self._chain:
            raise InputError(
                f"{self.path}, line {number}: this line or one before it was changed; restore the file"
            )
        self.events.append(event)

    def record(self, events: Sequence[Event]) -> None:
        """Appends events and returns only when they are on disk. Call it BEFORE using the releases.

        An event that stands there already, to the digest, is the same release drawn again after a
        crash, and is not counted twice.
        """
        known = set(self.events)
        lines = ""
        for event in events:
            if event not in known:
                self._chain = _link(self._chain, event)
                self.events.append(event)
                lines += json.dumps(asdict(event) | {"chain": self._chain}) + "\n"
        if lines:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())


def _link(chain: str, event: Event) -> str:
    return hashlib.sha256((chain + json.dumps(asdict(event))).encode()).hexdigest()
