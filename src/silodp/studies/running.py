"""Runs the cells of a study, each once, several at a time; goes on where it was stopped."""

from __future__ import annotations

import fcntl
import os
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from typing_extensions import TypedDict

from silodp.errors import InputError
from silodp.files import private_folder, private_open, to_json, write_atomically
from silodp.runs.schema import read_as
from silodp.studies.output import write_study
from silodp.studies.study import Cell, Found, Plan, Study
from silodp.studies.workers import worker_pool

OnCell = Callable[[str, int, int], None]
"""Told which cell has just ended, how many have, and how many there are."""


class _StudyFile(TypedDict):
    """study.json: whose a folder of results is."""

    command: str  # that was typed
    cells: list[str]  # names of their folders


def run_study(
    study: Study,
    plan: Plan,
    out: Path,
    *,
    resume: bool = False,
    only: str | None = None,
    jobs: int | None = None,
    device: str = "auto",
    on_cell: OnCell | None = None,
) -> Path:
    """Runs what has not run yet, and writes the results.

    Args:
        study: what to run.
        plan: at which scale, on which cohort, with which seeds.
        out: the folder of all studies: runs go into out/runs, where other studies find them, and results
            into out/NAME-SCALE.
        resume: go on with a study that has been started there, or with more of its cells.
        only: cells whose name contains this; the results then speak of these alone.
        jobs: cells at a time; default as many as cores where each takes one, else one.
        device: "auto", "cpu" or "cuda".
        on_cell: see `OnCell`.

    Returns:
        The folder of the results.
    """
    from silodp.runs.build import device_named

    device_named(device)  # refused once and now, rather than by every cell
    folder = out / f"{study.name}-{plan.scale}"
    every = study.cells(plan)
    _refuse_ignored(study, plan, every)
    cells = [cell for cell in every if only is None or only in cell.experiment.name]
    if not cells:
        names = ", ".join(sorted({cell.experiment.name for cell in every}))
        raise InputError(f"--only {only}: no cell has it in its name; there are {names}")
    found = [Found(cell, out / "runs" / cell.folder_name) for cell in cells]
    _claim(folder, plan, cells, resume)
    for one in found:
        if (one.folder / "summary.json").exists():
            _ = one.summary  # a damaged one is refused before the others train
    _run_cells(found, jobs or default_jobs(plan, device), device, on_cell, folder / "errors.txt")
    with _alone(folder):
        write_study(study, folder, replace(plan, only=only or ""), found)
    return folder


def default_jobs(plan: Plan, device: str) -> int:
    """Small models take one core each; a large one, or a GPU, is not shared unless asked for."""
    import torch

    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    return len(os.sched_getaffinity(0)) if on_cpu and plan.base.threads == 1 else 1


def _refuse_ignored(study: Study, plan: Plan, cells: Sequence[Cell]) -> None:
    """A change that no cell heeds is one that somebody counts on in vain."""
    for key, value in plan.changes.items():
        if all(_setting(cell, key) != value for cell in cells):
            raise InputError(f"--set {key}: {study.name} has its own in every run; leave it out")


def _setting(cell: Cell, key: str) -> object:
    """What a run has there; None where its rules have no such setting."""
    found: object = cell.experiment
    for name in key.split("."):
        found = getattr(found, name, None)
    return found


def _claim(folder: Path, plan: Plan, cells: Sequence[Cell], resume: bool) -> None:
    """A folder belongs to one study; its cells may become more, never others."""
    for place in (folder.parent, folder.parent / "runs", folder):
        if place.exists() and not place.is_dir():
            raise InputError(f"--out {folder.parent}: {place} is a file, not a folder; give another --out")
    private_folder(folder)
    path, names = folder / "study.json", [cell.folder_name for cell in cells]
    with _alone(folder):
        if path.exists():
            before = set(read_as(_StudyFile, path, "remove it or give another --out")["cells"])
            if not resume:
                raise InputError(
                    f"{folder}: this study was started there; go on with --resume, or give another --out"
                )
            if not before <= set(names):
                raise InputError(
                    f"{folder}: holds this study with other settings; repeat those, or give another --out"
                )
            if before == set(names):
                return
        asked: _StudyFile = {"command": plan.command, "cells": names}
        write_atomically(path, (to_json(asked, indent=1) + "\n").encode())


def _run_cells(found: Sequence[Found], jobs: int, device: str, on_cell: OnCell | None, errors: Path) -> None:
    """Every cell whose product is not there; one that fails does not stop the others."""
    waiting = {one.folder: one for one in found if not (one.folder / one.cell.product).exists()}
    done, total = len({one.folder for one in found}) - len(waiting), len({one.folder for one in found})
    errors.unlink(missing_ok=True)
    if on_cell is not None:
        on_cell("cells", done, total)
    failed: dict[str, list[str]] = {}  # the cells by what went wrong
    with closing(_work(list(waiting.values()), jobs, device)) as work:
        for one, error in work:
            if error is not None:
                failed.setdefault(_reason(one, error, errors), []).append(one.cell.experiment.name)
            else:
                done += 1
                if on_cell is not None:
                    on_cell("cells", done, total)
    if failed:
        count = sum(map(len, failed.values()))
        reasons = "; ".join(f"{', '.join(names)}: {error}" for error, names in failed.items())
        more = f"; the whole story is in {errors}" if errors.exists() else ""
        raise InputError(
            f"{count} of {total} cells failed ({reasons}){more}; the others are kept, go on with --resume"
        )


def _reason(one: Found, error: Exception, errors: Path) -> str:
    """One line; what nobody foresaw is kept with its traceback."""
    if isinstance(error, InputError | OSError):
        return str(error) or repr(error)
    with private_open(errors, "a") as file:
        file.write(f"{one.folder.name}\n{''.join(traceback.format_exception(error))}\n")
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".removesuffix(": ")


def _work(
    waiting: Sequence[Found], jobs: int, device: str
) -> Generator[tuple[Found, Exception | None], None, None]:
    """Each cell as it ends, with what went wrong."""
    if jobs == 1 or len(waiting) <= 1:
        for one in waiting:
            try:
                _do(one.cell, one.folder, device)
                yield one, None
            except Exception as error:
                yield one, error
        return
    with worker_pool(min(jobs, len(waiting))) as pool:
        futures = {pool.submit(_do, one.cell, one.folder, device): one for one in waiting}
        for future in as_completed(futures):
            failure = future.exception()
            if failure is not None and not isinstance(failure, Exception):
                raise failure
            yield futures[future], failure


def _do(cell: Cell, folder: Path, device: str) -> None:
    private_folder(folder.parent)
    with _alone(folder):
        if not (folder / cell.product).exists():  # another study may have done it meanwhile
            cell.work(cell.experiment, folder, device)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other study works in this folder. The lock is beside it: training has one inside."""
    with private_open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
