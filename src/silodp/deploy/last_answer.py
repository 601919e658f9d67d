"""The last answer of a site, stored before it is sent: a repeated request gets the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from silodp.errors import InputError
from silodp.files import parse_json, read_plain, to_json, write_atomically


@dataclass(frozen=True)
class LastAnswer:
    """The last round that was answered, the digest of its request, and the sealed reply."""

    round: int
    request: str
    reply: bytes

    def write(self, path: Path) -> None:
        header = to_json({"round": self.round, "request": self.request}).encode()
        write_atomically(path, header + b"\n" + self.reply)

    @classmethod
    def read(cls, path: Path) -> LastAnswer | None:
        if not path.exists():
            return None
        header, _, reply = read_plain(path).partition(b"\n")
        try:
            fields = parse_json(header)
            return cls(int(fields["round"]), str(fields["request"]), reply)
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: damaged; restore it, or let this hospital leave the run") from None
