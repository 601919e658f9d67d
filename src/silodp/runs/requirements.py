"""Which packages silodp asks for, needed and optional, and whether the installed ones fit.

By the metadata that silodp was installed with: the ranges of `pyproject.toml`.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import metadata as metadata_of
from importlib.metadata import requires as requirements_of
from importlib.metadata import version as version_of

OPTIONAL = {
    "flower": "hospitals on machines or GPUs of their own",
    "export": "`silodp export --format onnx`",
    "mlflow": "`--mlflow`",
    "docs": "`make docs`",
}
"""Extras of the package, and what each is for."""


@dataclass(frozen=True)
class Lack:
    """Something that is missing or broken.

    Attributes:
        what: it is, in words.
        way_out: what to do or type.
        needed: whether silodp cannot do its work without it.
    """

    what: str
    way_out: str
    needed: bool = True


@dataclass(frozen=True)
class Package:
    """A package that silodp asks for. `version` is None where it is not installed; `wanted` may be empty."""

    name: str
    wanted: str
    version: str | None
    fits: bool


@dataclass(frozen=True)
class Part:
    """An optional part: the packages that make it, and the command that installs them."""

    name: str
    purpose: str
    packages: tuple[Package, ...]
    command: str
    installed: bool


def optional_parts() -> tuple[Part, ...]:
    extras = (
        _part(name, purpose, _asked_for("silodp", name), f"silodp[{name}]")
        for name, purpose in OPTIONAL.items()
    )
    found = _version("tensorboard")  # no extra, since silodp writes event files without it
    shown = Package("tensorboard", "", found, found is not None)
    return (*extras, _part("tensorboard", "a look at what `--tensorboard` wrote", [shown], "tensorboard"))


def _part(name: str, purpose: str, packages: Iterable[Package], wanted: str) -> Part:
    each = tuple(packages)
    installed = bool(each) and all(package.fits for package in each)
    return Part(name, purpose, each, f"pip install {shlex.quote(wanted)}", installed)


def needed_packages(lacks: list[Lack]) -> Iterator[Package]:
    """What silodp needs, by the metadata that it was installed with; what does not fit goes to `lacks`."""
    try:
        python = metadata_of("silodp")["Requires-Python"]
        from packaging.specifiers import SpecifierSet
    except PackageNotFoundError:
        lacks.append(Lack("silodp is not installed, so versions cannot be compared", "pip install -e ."))
        return
    except ImportError:
        lacks.append(Lack("packaging is missing, so versions cannot be compared", "pip install packaging"))
        return
    if not SpecifierSet(python or "").contains(platform.python_version(), prereleases=True):
        way_out = f"make an environment with Python {python}"
        lacks.append(Lack(f"Python {platform.python_version()} is not {python}", way_out))
    for package in _asked_for("silodp", ""):
        if not package.fits:
            found = f"{package.version} is not {package.wanted}" if package.version else "is missing"
            way_out = f"pip install '{package.name}{package.wanted}'"
            lacks.append(Lack(f"{package.name} {found}", way_out))
        yield package


def _asked_for(name: str, extra: str) -> Iterator[Package]:
    """What an installed package asks for, with an extra only what that adds to it."""
    try:
        from packaging.requirements import Requirement

        requirements = [Requirement(text) for text in requirements_of(name) or ()]
    except ImportError:  # `packaging` is not installed, which is told already, or this package is not
        return
    for one in requirements:
        mark = one.marker
        usual = mark is None or mark.evaluate({"extra": ""})
        if usual if not extra else not usual and mark is not None and mark.evaluate({"extra": extra}):
            found = _version(one.name)
            fits = found is not None and one.specifier.contains(found, prereleases=True)
            yield Package(one.name, str(one.specifier), found, fits)
            for inner in sorted(one.extras):
                yield from _asked_for(one.name, inner)


def _version(package: str) -> str | None:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return None
