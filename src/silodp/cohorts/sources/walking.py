"""Lists the files below a folder; no file is opened, and links that lead out are not followed."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from silodp.cohorts.catalogue import Problem
from silodp.cohorts.sources.limits import LEADS_OUT, NO_FILE, is_below
from silodp.errors import InputError

LINKS = 10_000  # links to folders that are followed; folders that link to each other have endless paths

_walked: ContextVar[dict[Path, Below] | None] = ContextVar("walked", default=None)


@dataclass(frozen=True)
class Below:
    """The files and folders below a folder, as sorted relative paths.

    Attributes:
        files: all that are visible, also below links that stay inside.
        folders: those that could be read.
        problems: unreadable folders, links that lead out, and special files.
        links: pairs of a link's path and its target, for links that stay inside.
    """

    files: tuple[str, ...]
    folders: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    links: tuple[tuple[str, str], ...] = ()

    def ending_in(self, *endings: str) -> list[str]:
        """The files with these extensions, such as ".csv" or ".nii.gz"; case is ignored."""
        last = {"." + ending.rpartition(".")[2] for ending in endings}
        names = (name for one in last for name in self._by_ending.get(one, ()))
        return sorted(name for name in names if name.lower().endswith(endings))

    @cached_property
    def _by_ending(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for name in self.files:
            found[name[name.rfind(".") :].lower()].append(name)
        return found

    @property
    def fingerprint(self) -> str:
        """Of all names, kinds and links."""
        told = (*map(str, self.problems), *(f"{name} -> {place}" for name, place in self.links))
        parts = ("\n".join(part) for part in (self.files, self.folders, sorted(told)))
        return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()

    @property
    def in_words(self) -> str:
        """The first problems as the end of an error, since they may be its cause."""
        return "".join(f"; {problem}" for problem in self.problems[:3])


@contextmanager
def one_walk() -> Iterator[None]:
    """Caches listings for the block, so that several kinds of cohort list a folder once."""
    if _walked.get() is not None:
        yield
        return
    token = _walked.set({})
    try:
        yield
    finally:
        _walked.reset(token)


def files_below(root: Path) -> Below:
    """Lists files with their names and types only: all of RSNA-ICH has 750,000 files."""
    known = _walked.get()
    if known is None:
        return _walk(root)
    if root not in known:
        known[root] = _walk(root)
    return known[root]


def _walk(root: Path) -> Below:
    top = os.path.realpath(root)
    files: list[str] = []
    folders: list[str] = []
    problems: list[Problem] = []
    links: list[tuple[str, str]] = []
    followed = 0
    # Folders, and where each of them and those above it really are.
    waiting: list[tuple[str, tuple[str, ...]]] = [("", (top,))]
    while waiting:
        below, trail = waiting.pop()
        prefix = f"{below}/" if below else ""
        try:
            plain, others = _listed(root / below)
        except OSError as error:
            problems.append(Problem(below or ".", f"the folder cannot be read ({error.strerror})"))
            continue
        folders.append(below)
        files += [prefix + name for name in plain]
        for entry in others:
            name = prefix + entry.name
            place = os.path.realpath(entry.path) if entry.is_symlink() else f"{trail[-1]}/{entry.name}"
            if what := _unfit(entry, is_below(place, top)):
                problems.append(Problem(name.encode(errors="backslashreplace").decode(), what))
                continue
            if entry.is_symlink():
                links.append((name, place))
            if not entry.is_dir():
                files.append(name)
            elif not entry.is_symlink() or not any(is_below(each, place) for each in trail):
                followed += entry.is_symlink()
                waiting.append((name, (*trail, place)))
        if followed > LINKS:
            raise InputError(f"cohort.path = {root}: links between its folders are endless; remove them")
    if problems and not files:
        raise InputError(
            f"cohort.path = {root}: no file below it can be seen; {'; '.join(map(str, problems))}"
        )
    return Below(
        tuple(sorted(files)), tuple(sorted(filter(None, folders))), tuple(problems), tuple(sorted(links))
    )


def stamp(path: Path) -> list[str | int] | None:
    """Path, size and times of a file, which change with it; None if it does not exist."""
    place = str(path)
    try:
        found = os.stat(place)
    except OSError:
        return None
    absolute = place if place.startswith("/") else f"{os.getcwd()}/{place}"
    return [absolute, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _listed(folder: Path) -> tuple[list[str], list[os.DirEntry[str]]]:
    """Names of plain files in a folder, and entries that need a closer check; hidden ones are skipped."""
    plain, others = [], []
    with os.scandir(folder) as listing:
        for entry in listing:
            name = entry.name
            if name.startswith(".") or name == "__MACOSX":
                continue
            if entry.is_file(follow_symlinks=False) and name.isascii():
                plain.append(name)
            else:
                others.append(entry)
    return plain, others


def _unfit(entry: os.DirEntry[str], inside: bool) -> str | None:
    """Why an entry cannot be used; None if it can."""
    if not inside:
        return LEADS_OUT
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return "its name is not in UTF-8; rename it"
    # A link to nowhere is named when it is read, like any other file that is gone.
    fits = entry.is_dir() or entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))
    return None if fits else NO_FILE
