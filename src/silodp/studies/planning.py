"""From a study's name and scale to the experiment that its cells start from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.settings import CohortSettings
from silodp.studies.paper import SITES, Task
from silodp.studies.study import Plan, Scale

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead

# As the authors' program runs it; ε does not cover these two rules, and every table says so.
_AS_THE_AUTHORS = {"intermediaries.rule": "adaptive", "clipping.rule": "median"}

_BASES: dict[tuple[Task, Scale], tuple[str, dict[str, Any]]] = {
    ("prostate", "smoke"): (
        "demo",
        {
            "rounds": 2, "cohort.slices": 48, "cohort.image_size": 32, "model.features": 1,
            "local.batch_size": 4,
        },
    ),
    ("prostate", "small"): ("demo", {"checkpoint_every": 12}),
    ("prostate", "paper"): ("prostate-paper", {}),
    ("ich", "smoke"): (
        "ich-small",
        {
            "rounds": 2, "cohort.slices": 120, "cohort.image_size": 32, "cohort.channels": 1,
            "model.features": 4, "model.growth": 2, "model.blocks": [1, 1], "local.batch_size": 4,
            "local.augmentation": "none",
        },
    ),
    ("ich", "small"): (
        "ich-small",
        {"checkpoint_every": 10, "cohort.slices": 800, "cohort.image_size": 48},
    ),
    ("ich", "paper"): ("ich-paper", {}),
}  # fmt: skip


def make_plan(
    task: Task,
    scale: Scale,
    *,
    cohort: str | None = None,
    seeds: int | None = None,
    first_seed: int = 0,
    changes: Sequence[str] = (),
    command: str = "",
    on_read: OnRead | None = None,
) -> Plan:
    """The plan of a study.

    Args:
        task: whose table or figure it is.
        scale: smoke (seconds), small (minutes on a CPU) or paper (the paper's settings, for a GPU).
        cohort: a file or folder with images in place of the synthetic cohort.
        seeds: how many; default one, at paper scale three as in the paper.
        first_seed: the others follow it.
        changes: of every cell, such as "rounds=50"; a cell's own settings go before.
        command: what was typed.
        on_read: told how many files have been decoded.
    """
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds}: at least one")
    preset, own = _BASES[task, scale]
    base = Experiment.load(preset, {**_AS_THE_AUTHORS, **own})
    if cohort is not None:
        tree = base.model_dump(exclude_none=True)
        tree["cohort"] = _files(task, Path(cohort), base.cohort, on_read)
        base = Experiment.build(tree)
    base = Experiment.build(base.model_dump(exclude_none=True), changes)
    count = seeds or (3 if scale == "paper" else 1)
    return Plan(task, scale, base, tuple(range(first_seed, first_seed + count)), command)


def _files(task: Task, path: Path, own: CohortSettings, on_read: OnRead | None) -> dict[str, Any]:
    """Images from files at the size of the scale; where they name no hospitals, as many as in the paper."""
    from silodp.cohorts.inspection import recognise
    from silodp.cohorts.loading import read_store

    wanted = CohortSettings(path=str(path), image_size=own.image_size)
    settings, catalogue, _ = recognise(wanted)
    store = read_store(settings, on_read, catalogue)
    chosen: dict[str, Any] = {"kind": settings.kind, "path": str(path), "image_size": own.image_size}
    if not any(row.hospital is not None for row in store.rows):
        dealt = {"partition": "sizes", "sizes": SITES} if task == "prostate" else {"partition": "equal"}
        chosen |= {"hospitals": len(SITES) if task == "prostate" else 20, **dealt}
    return chosen
