"""The last answer of a site, stored before it is sent: a repeated request gets the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from silodp.errors import InputError
from silodp.files import parse_json, read_plain, to_json, write_atomically

_HEADER = 2**12  # bytes of the first line, at most


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
        return cls(*_parsed(header, path), reply)


def last_round(path: Path) -> int:
    """The round of the answer in this file, without its reply, which may be large; 0 where there is none."""
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        return _parsed(file.readline(_HEADER), path)[0]


def _parsed(header: bytes, path: Path) -> tuple[int, str]:
    try:
        fields = parse_json(header)
        return int(fields["round"]), str(fields["request"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: damaged; restore it, or let this hospital leave the run") from None
