"""The contributions of the round under way, on the coordinator's disk until the next round begins.

plan                the digest of the plan that they answer
NAME-….contribution one a hospital, as it came
closed              who counts: from then on nobody is added, whoever still answers
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from silodp.errors import InputError
from silodp.files import parse_json, private_folder, read_plain, remove_folder, to_json, write_atomically
from silodp.local.state import state_folder


class Journal:
    """One folder, its owner's alone; every file is written whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, plan: str) -> dict[str, bytes]:
        """What has come for this plan; what is there of another one goes."""
        if self._plan() != plan:
            self.clear()
            private_folder(self._folder)
            write_atomically(self._folder / "plan", plan.encode())
        came: dict[str, bytes] = {}
        for path in sorted(self._folder.glob("*.contribution")):
            name, _, content = read_plain(path).partition(b"\n")
            came[name.decode("utf-8", "surrogatepass")] = content
        if (counted := self._counted()) is not None:
            if missing := [name for name in counted if name not in came]:
                raise InputError(f"{self._folder}: the contribution of {missing[0]} is missing; restore it")
            came = {name: came[name] for name in counted}
        return came

    @property
    def closed(self) -> bool:
        return self._counted() is not None

    def add(self, hospital: str, content: bytes) -> None:
        path = state_folder(self._folder, hospital).with_suffix(".contribution")
        write_atomically(path, hospital.encode("utf-8", "surrogatepass") + b"\n" + content)

    def close(self, hospitals: Iterable[str]) -> None:
        """These count, and nobody else, however often the round is done again."""
        write_atomically(self._folder / "closed", to_json(sorted(hospitals)).encode())

    def clear(self) -> None:
        remove_folder(self._folder)

    def _plan(self) -> str:
        path = self._folder / "plan"
        return read_plain(path).decode() if path.exists() else ""

    def _counted(self) -> list[str] | None:
        path = self._folder / "closed"
        if not path.exists():
            return None
        try:
            return [str(name) for name in parse_json(read_plain(path))]
        except (ValueError, TypeError):
            raise InputError(f"{path}: damaged; restore it, or start a new run") from None
