"""What is recorded for the live pages: the last request and the refusals.

An error while recording is ignored.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from silodp.deploy.envelope import Request
from silodp.deploy.status import HEARD
from silodp.errors import InputError
from silodp.files import private_open, to_json, write_json

LARGEST_LIST = 2**20  # bytes, after which a new list begins


def record_request(folder: Path, request: Request) -> None:
    """Records the last signed request."""
    said = {"time": round(time.time(), 3), "asked": request.kind, "run": request.run}
    with suppress(InputError, OSError):
        write_json(folder / HEARD, said, indent=None)


def record_refusal(path: Path, reason: str, **more: str) -> None:
    """Appends a refusal; a list that has become too long is renamed, and a new one begins.

    Args:
        path: of the list.
        reason: of the refusal.
        more: further fields, such as the hospital.
    """
    with suppress(InputError, OSError):
        if path.exists() and path.stat().st_size > LARGEST_LIST:
            path.replace(path.with_suffix(".old.jsonl"))
        with private_open(path, "a") as file:
            file.write(to_json({"time": round(time.time(), 3), **more, "reason": reason}) + "\n")
