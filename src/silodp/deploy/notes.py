"""What is written down for a page: who was heard last, and what was refused.

Where it cannot be written, that is all that is lost.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from silodp.deploy.envelope import Request
from silodp.deploy.status import HEARD
from silodp.errors import InputError
from silodp.files import private_open, to_json, write_atomically

LARGEST_LIST = 2**20  # bytes of refusals, then a new list begins


def note_heard(folder: Path, request: Request) -> None:
    """The last signed request."""
    said = {"time": round(time.time(), 3), "asked": request.kind, "run": request.run}
    with suppress(InputError, OSError):
        write_atomically(folder / HEARD, to_json(said).encode())


def note_refusal(path: Path, reason: str, **more: str) -> None:
    """One more line in the list of refusals; a flood of them costs the oldest.

    Args:
        more: who refused what, in a list of several.
    """
    with suppress(InputError, OSError):
        if path.exists() and path.stat().st_size > LARGEST_LIST:
            path.replace(path.with_suffix(".old.jsonl"))
        with private_open(path, "a") as file:
            file.write(to_json({"time": round(time.time(), 3), **more, "reason": reason}) + "\n")
