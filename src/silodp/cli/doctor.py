"""`silodp doctor`: what this machine has, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from silodp.cli.importing import importing
from silodp.cli.options import Json
from silodp.cli.terminal import print_json, say
from silodp.errors import printable

if TYPE_CHECKING:
    from silodp.runs.machine import Folder, Machine
    from silodp.runs.requirements import Part


def doctor(as_json: Json = False) -> None:
    """Say what this machine has, what is missing and how to get it; useful in a bug report.

    Exit code 1 where something is missing or broken that silodp needs.
    """
    from silodp.runs.machine import examine

    with importing():
        machine = examine()
    if as_json:
        print_json(asdict(machine) | {"complete": machine.complete})
    else:
        for line in _lines(machine):
            say(printable(line, one_line=True))
    if not machine.complete:
        raise typer.Exit(1)


def _lines(machine: Machine) -> Iterator[str]:
    torch = machine.torch
    yield f"silodp {machine.silodp}, Python {machine.python}, {machine.system}"
    if torch:
        cuda = f"CUDA {torch.cuda}" if torch.cuda else "without CUDA"
        yield f"PyTorch {torch.version}, {cuda}, {torch.threads} threads"
    else:
        yield "PyTorch: cannot be imported"
    yield f"processor: {machine.cores} of {machine.all_cores} cores, {machine.memory / 1e9:.1f} GB memory"
    gpus = torch.gpus if torch else ()
    yield "GPU: " + (", ".join(f"{gpu.name}, {gpu.memory / 1e9:.0f} GB" for gpu in gpus) or "none")
    fitting = sum(package.fits for package in machine.packages)
    yield f"needed packages: {fitting} of {len(machine.packages)} here and in their ranges"
    for part in machine.parts:
        yield f"  {part.name:12} {_describe_part(part)}"
    for program in machine.programs:
        if program.path:
            found = f"{program.path}{program.version and f' ({program.version})'}"
        else:
            found = f"not found, for {program.purpose}: {program.command}"
        yield f"  {program.name:12} {found}"
    yield f"cache: {_describe_folder(machine.cache)}"
    yield f"runs: {_describe_folder(machine.runs)}"
    yield f"entropy of the operating system: {'ready' if machine.entropy else 'not ready'}"
    for lack in machine.lacks:
        yield f"{'needed' if lack.needed else 'mind'}: {lack.what}; {lack.way_out}"
    if machine.complete:
        yield "everything that is needed is here"
    else:
        needed = sum(lack.needed for lack in machine.lacks)
        yield f"not ready: missing or broken and needed: {needed}; see the lines above"


def _describe_part(part: Part) -> str:
    if part.installed:
        return ", ".join(f"{package.name} {package.version}" for package in part.packages)
    lacking = ", ".join(
        f"{package.name} {package.version} is not {package.wanted}" if package.version else package.name
        for package in part.packages
        if not package.fits
    )
    return f"not installed{lacking and f' ({lacking})'}, for {part.purpose}: {part.command}"


def _describe_folder(folder: Folder) -> str:
    words = [f"{folder.free / 1e9:,.1f} GB free"]
    if folder.bytes is not None:
        words.insert(0, f"{folder.bytes / 1e6:,.1f} MB")
    if folder.private is None:
        words.append("not made yet")
    else:
        words.append("private" if folder.private else "others may look into it")
    words.append(f"cannot be written ({folder.problem})" if folder.problem else "writable")
    return f"{folder.path}: {', '.join(words)}"
