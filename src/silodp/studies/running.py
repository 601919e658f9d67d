"""Runs the cells of a study, each once and several at a time; continues a study that was stopped."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from typing_extensions import TypedDict

from silodp.errors import InputError
from silodp.files import private_folder, private_open, take_lock, write_json
from silodp.runs.schema import read_as
from silodp.studies.output import write_study
from silodp.studies.study import Cell, CellRun, Plan, Study, value_of
from silodp.studies.workers import worker_pool

OnCell = Callable[[str, int, int], None]
"""Called with ("cells", cells done, cells in all)."""


class _StudyFile(TypedDict):
    """study.json: which study a folder of results belongs to."""

    command: str
    cells: list[str]  # names of the cells' folders


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
    """Runs the cells that have not run yet, and writes the results.

    Args:
        study: what to run.
        plan: scale, cohort and seeds.
        out: folder of all studies: runs go into out/runs, where other studies find them, and results into
            out/NAME-SCALE.
        resume: continue a study that was started there, perhaps with more cells.
        only: run only the cells whose name contains this; the results are then of these alone.
        jobs: cells at a time; default: as many as cores where each takes one core, else one.
        device: "auto", "cpu" or "cuda".
        on_cell: see `OnCell`.

    Returns:
        The folder of the results.
    """
    from silodp.runs.build import device_named

    device_named(device)  # refuses a bad name once, instead of in every cell
    folder = out / f"{study.name}-{plan.scale}"
    every = study.cells(plan)
    _refuse_ignored(study, plan, every)
    cells = [cell for cell in every if only is None or only in cell.experiment.name]
    if not cells:
        names = ", ".join(sorted({cell.experiment.name for cell in every}))
        raise InputError(f"--only {only}: no cell has it in its name; there are {names}")
    found = [CellRun(cell, out / "runs" / cell.folder_name) for cell in cells]
    _register(folder, plan, cells, resume)
    for one in found:
        if (one.folder / "summary.json").exists():
            _ = one.summary  # refuses a damaged file before other cells train
    _run_cells(found, jobs or default_jobs(plan, device), device, on_cell, folder / "errors.txt")
    with _locked(folder):
        write_study(study, folder, replace(plan, only=only or ""), found)
    return folder


def default_jobs(plan: Plan, device: str) -> int:
    """One cell a core where each takes one core; large models and GPUs are not shared by default."""
    import torch

    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    return len(os.sched_getaffinity(0)) if on_cpu and plan.base.threads == 1 else 1


def _refuse_ignored(study: Study, plan: Plan, cells: Sequence[Cell]) -> None:
    """Refuses a change that every cell overrides."""
    for key, value in plan.changes.items():
        if all(value_of(cell.experiment, key) != value for cell in cells):
            raise InputError(f"--set {key}: {study.name} has its own in every run; leave it out")


def _register(folder: Path, plan: Plan, cells: Sequence[Cell], resume: bool) -> None:
    """Writes study.json; refuses a folder of another study, and cells other than before (more are fine)."""
    for place in (folder.parent, folder.parent / "runs", folder):
        if place.exists() and not place.is_dir():
            raise InputError(f"--out {folder.parent}: {place} is a file, not a folder; give another --out")
    private_folder(folder)
    path, names = folder / "study.json", [cell.folder_name for cell in cells]
    with _locked(folder):
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
        write_json(path, asked, indent=1)


def _run_cells(
    found: Sequence[CellRun], jobs: int, device: str, on_cell: OnCell | None, errors: Path
) -> None:
    """Runs every cell whose product does not exist; one that fails does not stop the others."""
    each = {one.folder: one for one in found}  # two cells may have one run
    waiting = [one for one in each.values() if not (one.folder / one.cell.product).exists()]
    done, total = len(each) - len(waiting), len(each)
    errors.unlink(missing_ok=True)
    if on_cell is not None:
        on_cell("cells", done, total)
    failed: dict[str, list[str]] = {}  # cells by error message
    with closing(_run_pending(waiting, jobs, device)) as work:
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
        more = f"; the traceback is in {errors}" if errors.exists() else ""
        raise InputError(
            f"{count} of {total} cells failed ({reasons}){more}; the others are kept, go on with --resume"
        )


def _reason(one: CellRun, error: Exception, errors: Path) -> str:
    """The error in one line; an unexpected one is written to `errors` with its traceback."""
    if isinstance(error, InputError | OSError):
        return str(error) or repr(error)
    with private_open(errors, "a") as file:
        file.write(f"{one.folder.name}\n{''.join(traceback.format_exception(error))}\n")
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".removesuffix(": ")


def _run_pending(
    waiting: Sequence[CellRun], jobs: int, device: str
) -> Generator[tuple[CellRun, Exception | None], None, None]:
    """Yields each cell when it ends, with its error if it failed."""
    if jobs == 1 or len(waiting) <= 1:
        for one in waiting:
            try:
                _run_cell(one.cell, one.folder, device)
                yield one, None
            except Exception as error:
                yield one, error
        return
    with worker_pool(min(jobs, len(waiting))) as pool:
        futures = {pool.submit(_run_cell, one.cell, one.folder, device): one for one in waiting}
        for future in as_completed(futures):
            failure = future.exception()
            if failure is not None and not isinstance(failure, Exception):
                raise failure
            yield futures[future], failure


def _run_cell(cell: Cell, folder: Path, device: str) -> None:
    private_folder(folder.parent)
    with _locked(folder):
        if not (folder / cell.product).exists():  # another study may have run it in the meantime
            cell.work(cell.experiment, folder, device)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Waits until no other study works in this folder. The lock lies beside it: training has one inside."""
    with private_open(folder.parent / f".{folder.name}.lock", "w") as lock:
        take_lock(lock)
        yield
