"""Finding run folders, and choosing an unused one for a new run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from silodp.files import refuse_filled

_BEFORE_A_RUN = {".lock", "versions.json", "versions.json.part", "experiment.toml.part"}
"""Files that a kill during `create` can leave; they are not a run yet."""

PERSONAL = "personal.json"
"""Written by `silodp personalise` beside a copy of a run's experiment.toml and cohort.json; no run."""

_FILES = ("experiment.toml", "ledger.jsonl", "checkpoint.pt", "summary.json")
"""Any of them makes a folder a run, even a damaged one."""


def runs_in(folder: Path, deep: int = 3) -> Iterator[Path]:
    """Yields the folder if it is a run, else the runs in it, down to `deep` levels."""
    if (folder.parent / "site.toml").is_file():
        return  # a hospital's folder in a deployment, with a ledger over all runs
    if (folder / PERSONAL).is_file():
        return
    if any((folder / name).is_file() for name in _FILES):
        yield folder
    elif deep:
        try:
            inside = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
        except OSError:  # not accessible
            return
        for path in inside:
            with suppress(PermissionError):  # another user's run: its folder is that user's alone
                yield from runs_in(path, deep - 1)


def last_written(folder: Path) -> float:
    """Time of the last change to a file of the run itself, not of later pages or statements."""
    names = (*_FILES, "metrics.jsonl")
    times = [path.stat().st_mtime for name in names if (path := folder / name).is_file()]
    return max(times, default=0.0)


def refuse_used(path: Path) -> None:
    """Refuses a folder that is neither new nor empty."""
    way_out = f"give another folder, or continue the run with `silodp resume {path}`"
    refuse_filled(path, _BEFORE_A_RUN, way_out)


@contextmanager
def new_folder(out: str | Path | None, name: str, parent: str = "runs") -> Iterator[Path]:
    """Yields the folder `out`, which must be unused, or a new PARENT/NAME-k with the first free k.

    A new one is made at once, so that two processes never get the same, and removed if it stays empty.
    """
    if out is not None:
        refuse_used(Path(out))
        yield Path(out)
        return
    above, alone = Path(parent), not Path(parent).exists()
    path = _taken(above, name)
    try:
        yield path
    finally:
        with suppress(OSError):  # not empty
            path.rmdir()
            if alone:
                above.rmdir()


def _taken(parent: Path, name: str) -> Path:
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        except FileNotFoundError:  # the parent, not made yet or just removed by another process
            parent.mkdir(parents=True, exist_ok=True)
        else:
            return path
