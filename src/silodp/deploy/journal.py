"""The contributions of the current round, on the coordinator's disk until the next round begins.

plan                the digest of the plan that they answer
NAME-….contribution one a hospital, as received
closed              names of those that count; later contributions are not added
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from silodp.errors import InputError
from silodp.files import private_folder, read_json, read_plain, remove_folder, write_atomically, write_json
from silodp.local.state import state_folder


class Journal:
    """A folder that only its owner can access; its files are replaced atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, plan: str) -> tuple[dict[str, bytes], bool]:
        """Returns the contributions for this plan, by hospital, and whether they are all that count.

        Those for another plan are deleted.
        """
        path = self._folder / "plan"
        if not path.exists() or read_plain(path) != plan.encode():
            self.clear()
            private_folder(self._folder)
            write_atomically(path, plan.encode())
        came: dict[str, bytes] = {}
        for path in sorted(self._folder.glob("*.contribution")):
            name, _, content = read_plain(path).partition(b"\n")
            came[name.decode("utf-8", "surrogatepass")] = content
        if (counted := self._counted()) is None:
            return came, False
        if missing := [name for name in counted if name not in came]:
            raise InputError(f"{self._folder}: the contribution of {missing[0]} is missing; restore it")
        return {name: came[name] for name in counted}, True

    def add(self, hospital: str, content: bytes) -> None:
        path = state_folder(self._folder, hospital).with_suffix(".contribution")
        write_atomically(path, hospital.encode("utf-8", "surrogatepass") + b"\n" + content)

    def close(self, hospitals: Iterable[str]) -> None:
        """Fixes which hospitals count, also when the round is repeated."""
        write_json(self._folder / "closed", sorted(hospitals), indent=None)

    def clear(self) -> None:
        remove_folder(self._folder)

    def _counted(self) -> list[str] | None:
        path = self._folder / "closed"
        if not path.exists():
            return None
        try:
            return [str(name) for name in read_json(path)]
        except (ValueError, TypeError):
            raise InputError(f"{path}: damaged; restore it, or start a new run") from None
