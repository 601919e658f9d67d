"""Examines the machine for `silodp doctor`: processors, programs, folders, and what is missing.

Other packages are imported in try blocks only, so that it also works in a broken environment.
"""

from __future__ import annotations

import importlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from silodp.files import default_cache
from silodp.runs.requirements import Lack, Package, Part, needed_packages, optional_parts
from silodp.runs.version import version

LITTLE_SPACE = 10**9  # bytes; a run at the paper's size takes some hundred million
PROGRAMS = (
    ("chromium", "tests of pages", "chromium", "--version"),
    ("chromedriver", "tests of pages", "chromium-driver", "--version"),
    ("nginx", "`silodp deploy coordinator` and its tests", "nginx-light", "-v"),
    ("openssl", "keys of signed statements", "openssl", "version"),
)
"""Programs beside Python: name, purpose, Debian package, and the option that prints the version."""


@dataclass(frozen=True)
class Program:
    """A program beside Python, and the command that installs it; `path` is None where it is not found."""

    name: str
    purpose: str
    command: str
    path: str | None
    version: str


@dataclass(frozen=True)
class Gpu:
    """As PyTorch sees it; `memory` in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Folder:
    """A folder, which need not exist yet.

    Attributes:
        bytes: in its files; 0 where it does not exist, None where nobody asked.
        private: whether its owner alone may enter; None where it does not exist.
        problem: why nothing can be written there; empty where it can.
        free: bytes left on its disk.
    """

    path: str
    bytes: int | None
    private: bool | None
    problem: str
    free: int


@dataclass(frozen=True)
class PyTorch:
    """PyTorch once imported; `threads` are those of one process, `cuda` is empty in a build without it."""

    version: str
    cuda: str
    threads: int
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Machine:
    """Everything that `silodp doctor` tells; `memory` in bytes, `cores` are those this process may use."""

    silodp: str
    python: str
    system: str
    cores: int
    all_cores: int
    memory: int
    torch: PyTorch | None
    packages: tuple[Package, ...]
    parts: tuple[Part, ...]
    programs: tuple[Program, ...]
    cache: Folder
    runs: Folder
    entropy: bool
    lacks: tuple[Lack, ...]

    @property
    def complete(self) -> bool:
        return not any(lack.needed for lack in self.lacks)


def examine() -> Machine:
    """Looks at this machine from this folder; writes nothing that stays."""
    lacks: list[Lack] = []
    packages = tuple(needed_packages(lacks))
    torch = _pytorch(lacks)
    cache = _folder(default_cache().expanduser(), measured=True)
    runs = _folder(Path.cwd() / "runs", measured=False)
    entropy = _has_entropy()
    lacks += _folder_lacks(cache, runs)
    if not entropy:
        lacks.append(Lack("the operating system has no entropy yet", "wait a minute after it has started"))
    programs = tuple(_program(*one) for one in PROGRAMS)
    return Machine(
        version(), platform.python_version(), platform.platform(),
        len(os.sched_getaffinity(0)), os.cpu_count() or 1,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        torch, packages, optional_parts(), programs, cache, runs, entropy, tuple(lacks),
    )  # fmt: skip


def _pytorch(lacks: list[Lack]) -> PyTorch | None:
    """Imports what a run imports, since an installed package may be broken."""
    try:
        import torch
    except Exception as error:  # a library that does not load raises more than ImportError
        way_out = "pip install --force-reinstall 'torch>=2.6'"
        lacks.append(Lack(f"PyTorch cannot be imported ({error})", way_out))
        return None
    try:
        importlib.import_module("silodp.runs.training")
    except Exception as error:
        way_out = "install silodp again in a new environment"
        lacks.append(Lack(f"what a run needs cannot be imported ({error})", way_out))
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpus = tuple(Gpu(one.name, one.total_memory) for one in devices)
    if not gpus and Path("/proc/driver/nvidia/version").exists():
        build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
        way_out = "install the build of PyTorch that fits the driver, or train on the CPU"
        lacks.append(
            Lack(f"an NVIDIA driver is here, but PyTorch ({build}) finds no GPU", way_out, needed=False)
        )
    return PyTorch(torch.__version__, torch.version.cuda or "", torch.get_num_threads(), gpus)


def _program(name: str, purpose: str, package: str, question: str) -> Program:
    """Finds a program and its version; Debian has nginx in a folder of root's PATH only."""
    command = f"apt-get install {package}"
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    first = ""
    if path is not None:
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(
                [path, question], capture_output=True, text=True, errors="replace", timeout=20, check=True
            )
            first = (said.stdout or said.stderr).strip().partition("\n")[0]
    return Program(name, purpose, command, path, first)


def _folder(path: Path, *, measured: bool) -> Folder:
    path = path.absolute()
    private = not path.stat().st_mode & 0o077 if os.path.isdir(path) else None
    nearest = next(place for place in (path, *path.parents) if os.path.exists(place))
    problem = ""
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"silodp")
    except OSError as error:
        problem = error.strerror or str(error)
    size = _size(path) if measured else None
    return Folder(str(path), size, private, problem, shutil.disk_usage(nearest).free)


def _size(folder: Path) -> int:
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # removed by another process meanwhile
                continue
    return found


def _folder_lacks(cache: Folder, runs: Folder) -> Iterator[Lack]:
    if cache.problem:
        what = f"the cache of decoded images, {cache.path}, cannot be written ({cache.problem})"
        yield Lack(what, "set XDG_CACHE_HOME, or cohort.cache in an experiment, to a folder of yours")
    if cache.private is False:
        what = f"others may look into the cache of decoded images, {cache.path}"
        yield Lack(what, f"chmod 700 {shlex.quote(cache.path)}", needed=False)
    if runs.problem:
        what = f"the folder for runs, {runs.path}, cannot be written ({runs.problem})"
        yield Lack(what, "go to a folder of yours, or give one with --out")
    for folder in (cache, runs):
        if not folder.problem and folder.free < LITTLE_SPACE:
            what = f"only {folder.free / 1e6:,.0f} MB are free at {folder.path}"
            yield Lack(what, "make room; `silodp cache --clear` removes decoded images", needed=False)


def _has_entropy() -> bool:
    """Whether noise of deployments can be drawn at once: the kernel's generator has been seeded."""
    try:
        return len(os.getrandom(32, os.GRND_NONBLOCK)) == 32
    except OSError:
        return False
