"""Runs the cells of a study, each once, several at a time; goes on where it was stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from silodp.errors import InputError
from silodp.files import to_json, write_atomically
from silodp.studies.study import Cell, Found, Plan, Study

OnCell = Callable[[str, int, int], None]
"""Told which cell has just ended, how many have, and how many there are."""


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
        resume: go on with a study that has been started there.
        only: cells whose name contains this; the results then speak of these alone.
        jobs: cells at a time; default as many as cores where each takes one, else one.
        device: "auto", "cpu" or "cuda".
        on_cell: see `OnCell`.

    Returns:
        The folder of the results.
    """
    folder = out / f"{study.name}-{plan.scale}"
    cells = [cell for cell in study.cells(plan) if only is None or only in cell.experiment.name]
    if not cells:
        names = ", ".join(sorted({cell.experiment.name for cell in study.cells(plan)}))
        raise InputError(f"--only {only}: no cell has it in its name; there are {names}")
    _claim(folder, plan, cells, resume)
    found = [Found(cell, out / "runs" / cell.folder_name) for cell in cells]
    _run_cells(found, jobs or default_jobs(plan, device), device, on_cell)
    study.write(folder, plan, found)
    return folder


def default_jobs(plan: Plan, device: str) -> int:
    """Small models take one core each; a large one, or a GPU, is not shared unless asked for."""
    import torch

    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    return len(os.sched_getaffinity(0)) if on_cpu and plan.base.threads == 1 else 1


def _claim(folder: Path, plan: Plan, cells: Sequence[Cell], resume: bool) -> None:
    """A folder belongs to one study with one set of cells."""
    path, asked = folder / "study.json", {"command": plan.command, "cells": [c.folder_name for c in cells]}
    if path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))["cells"]
        except (ValueError, KeyError):
            raise InputError(f"{path}: not a study of silodp; remove it or give another --out") from None
        if not resume:
            raise InputError(
                f"{folder}: this study was started there; go on with --resume, or give another --out"
            )
        if before != asked["cells"]:
            raise InputError(
                f"{folder}: holds this study with other settings; repeat those, or give another --out"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (to_json(asked, indent=1) + "\n").encode())


def _run_cells(found: Sequence[Found], jobs: int, device: str, on_cell: OnCell | None) -> None:
    """Every cell whose product is not there; one that fails does not stop the others."""
    waiting = {one.folder: one for one in found if not (one.folder / one.cell.product).exists()}
    done, total = len({one.folder for one in found}) - len(waiting), len({one.folder for one in found})
    if on_cell is not None and done:
        on_cell("cells", done, total)
    failed: dict[str, list[str]] = {}  # the cells by what went wrong
    for one, error in _work(list(waiting.values()), jobs, device):
        if error is not None:
            failed.setdefault(str(error) or repr(error), []).append(one.cell.experiment.name)
        else:
            done += 1
            if on_cell is not None:
                on_cell("cells", done, total)
    if failed:
        count = sum(map(len, failed.values()))
        reasons = "; ".join(f"{', '.join(names)}: {error}" for error, names in failed.items())
        raise InputError(
            f"{count} of {total} cells failed ({reasons}); the others are kept, go on with --resume"
        )


def _work(waiting: Sequence[Found], jobs: int, device: str) -> Iterator[tuple[Found, Exception | None]]:
    """Each cell as it ends, with what went wrong."""
    if jobs == 1 or len(waiting) <= 1:
        for one in waiting:
            try:
                _do(one.cell, one.folder, device)
                yield one, None
            except Exception as error:
                yield one, error
        return
    with _pool(min(jobs, len(waiting))) as pool:
        futures = {pool.submit(_do, one.cell, one.folder, device): one for one in waiting}
        for future in as_completed(futures):
            failure = future.exception()
            if failure is not None and not isinstance(failure, Exception):
                raise failure
            yield futures[future], failure


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """New processes rather than forks, which CUDA cannot follow; an interrupt drops what has not begun."""
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _do(cell: Cell, folder: Path, device: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    cell.work(cell.experiment, folder, device)
