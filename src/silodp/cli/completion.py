"""What the Tab key offers for arguments. Where nothing is offered, shells complete the names of files.

Shells put an offered word into the command line as it is, and zsh evaluates it first: only names that need no
quotes are offered, so that the name of somebody's folder cannot become a command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path


def experiments(incomplete: str) -> list[str]:
    """Presets, and the TOML files of this folder."""
    from silodp.experiment import preset_names

    try:
        files = sorted(path.name for path in Path().glob("*.toml"))
    except OSError:  # a folder that may not be listed, or is gone
        files = []
    return _offered([*preset_names(), *files], incomplete)


def studies(incomplete: str) -> list[str]:
    """Studies, in the order of the paper."""
    from silodp.studies import study_names

    return _offered(study_names(), incomplete)


def run_folders(incomplete: str) -> list[str]:
    """Runs below the folder that was begun to be typed, at first `runs`."""
    from silodp.runs.places import runs_in

    beginning = incomplete[: incomplete.rfind("/") + 1] or "runs/"
    place = Path(beginning)
    try:
        found = sorted(
            f"{beginning}{run.relative_to(place)}" for run in runs_in(place, deep=2) if run != place
        )
    except OSError:  # a folder that may not be looked into
        found = []
    return _offered(found, incomplete)


def runs_and_experiments(incomplete: str) -> list[str]:
    return run_folders(incomplete) + experiments(incomplete)


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete) and shlex.quote(name) == name]
