"""Which silodp this is: its version and, where it runs from a checkout, the commit."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from silodp import __version__


@cache
def version() -> str:
    """Such as "0.1.0", or "0.1.0 (1a2b3c4+changes)" from a checkout with changes in the package."""
    commit = commit_of(Path(__file__).parents[1])
    return f"{__version__} ({commit})" if commit else __version__


def commit_of(package: Path) -> str:
    """The short commit of a package's checkout; empty without git, or if git does not track its files."""
    if not _git(package, "ls-files", "--", "__init__.py"):  # a virtual environment in somebody's checkout
        return ""
    commit = _git(package, "rev-parse", "--short", "HEAD")
    return commit + "+changes" * bool(commit and _git(package, "status", "--porcelain", "--", "."))


def _git(folder: Path, *words: str) -> str:
    """Output of a git command; empty if it fails."""
    # A hook sets GIT_DIR to a repository that need not be this one.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=clean | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
