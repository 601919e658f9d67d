"""Completions of arguments for the Tab key; where there are none, shells complete file names.

Shells insert a completion unquoted, and zsh evaluates it first: only names that need no quotes are offered,
so that the name of a folder cannot run a command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path


def experiments(incomplete: str) -> list[str]:
    """Presets, and the TOML files of the current folder."""
    from silodp.experiment import preset_names

    try:
        files = sorted(path.name for path in Path().glob("*.toml"))
    except OSError:  # the folder cannot be listed, or is gone
        files = []
    return _offered([*preset_names(), *files], incomplete)


def studies(incomplete: str) -> list[str]:
    """Studies, in the order of the paper."""
    from silodp.studies import study_names

    return _offered(study_names(), incomplete)


def run_folders(incomplete: str) -> list[str]:
    """Runs below the folder typed so far, or below `runs`."""
    from silodp.runs.places import runs_in

    beginning = incomplete[: incomplete.rfind("/") + 1] or "runs/"
    place = Path(beginning)
    try:
        found = sorted(
            f"{beginning}{run.relative_to(place)}" for run in runs_in(place, deep=2) if run != place
        )
    except OSError:  # the folder cannot be read
        found = []
    return _offered(found, incomplete)


def runs_and_experiments(incomplete: str) -> list[str]:
    return run_folders(incomplete) + experiments(incomplete)


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete) and shlex.quote(name) == name]
