"""Which silodp a run was made with, and whether that was what is committed."""

import re
import subprocess
from pathlib import Path

import pytest

from silodp import __version__
from silodp.runs.version import commit_of, version


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_has_its_commit_and_says_whether_it_is_changed(tmp_path: Path) -> None:
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert commit_of(package) == ""  # no repository
    git(tmp_path, "init", "--quiet")
    assert commit_of(package) == ""  # a repository that does not hold it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    short = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert commit_of(package) == short
    (tmp_path / "notes.md").write_text("elsewhere")
    assert commit_of(package) == short
    (package / "more.py").write_text("")
    assert commit_of(package) == f"{short}+changes"


def test_without_git_there_is_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(Path(__file__).parent) == ""
    version.cache_clear()
    assert version() == __version__
    version.cache_clear()


def test_the_version_of_this_package() -> None:
    assert re.fullmatch(rf"{re.escape(__version__)}( \([0-9a-f]{{7,}}(\+changes)?\))?", version())
