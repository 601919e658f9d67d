"""Makes the plan of a study: the experiment that its cells start from, at a scale and with a cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silodp.errors import InputError
from silodp.experiment import Experiment, cohort_at
from silodp.studies.paper import SITES, Task, hospitals
from silodp.studies.study import Base, Plan, Scale, value_of

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import OnRead

# As in the authors' program; ε does not cover these two rules, which every table says.
_AUTHORS = {"intermediaries.rule": "adaptive", "clipping.rule": "median", "model.norm": "batch"}
# For the small scales, tuned with the authors' BatchNorm; the presets have GroupNorm and other rates.
_MRI = {**_AUTHORS, "local.learning_rate": 1.5e-2}
_CT = {**_AUTHORS, "local.learning_rate": 3e-3, "privacy.noise_multiplier": 1.0}

_BASES: dict[Task, dict[Scale, Base]] = {
    "prostate": {
        "smoke": Base("demo", {
            **_MRI, "rounds": 2, "cohort.slices": 48, "cohort.image_size": 32, "model.features": 4,
            "model.levels": 2, "local.batch_size": 4,
        }),
        "small": Base("demo", {**_MRI, "checkpoint_every": 12}),
        "paper": Base("prostate-paper", _AUTHORS),
    },
    "ich": {
        "smoke": Base("ich-small", {
            **_CT, "rounds": 2, "cohort.hospitals": 12, "cohort.slices": 72, "cohort.image_size": 32,
            "cohort.channels": 1, "model.features": 4, "model.growth": 2, "model.blocks": [1, 1],
            "local.batch_size": 4, "local.augmentation": "none",
        }),
        "small": Base("ich-small", {
            **_CT, "checkpoint_every": 10, "cohort.slices": 800, "cohort.image_size": 48,
            "model.features": 16, "model.growth": 12, "model.blocks": [3, 4, 4],
        }),
        "paper": Base("ich-paper", _AUTHORS),
    },
}  # fmt: skip


def make_plan(
    task: Task,
    scale: Scale,
    *,
    cohort: str | None = None,
    seeds: int | None = None,
    first_seed: int = 0,
    changes: Sequence[str] = (),
    settable: Sequence[str] = (),
    bases: Mapping[Scale, Base] | None = None,
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
        changes: of every cell, such as "rounds=50"; a cell's own settings take precedence.
        settable: see `Study`.
        bases: see `Study`.
        command: the command line.
        on_read: called with the number of decoded files and of all files.
    """
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds}: at least one")
    typed = [change.partition("=")[0].strip() for change in changes]
    _refuse_cells_own(typed, settable)
    origin = (bases or _BASES[task])[scale]
    base = Experiment.load(origin.preset, origin.own)
    tree = base.model_dump(exclude_none=True, exclude_unset=True)  # so that defaults follow the changes
    asked: dict[str, Any] = {}
    if cohort is not None:
        size = {"image_size": origin.file_size or tree["cohort"]["image_size"]}
        given = [change for change in changes if change.strip().startswith("cohort.")]
        chosen = _files(task, size | cohort_at(Path(cohort), given), on_read)
        tree["cohort"] = chosen | size
        asked = {f"cohort.{key}": value for key, value in chosen.items()}
    base = Experiment.build(tree, changes)
    data = ""
    if base.cohort.files is not None:
        base = base.change(cohort__path=str(Path(base.cohort.files).expanduser().absolute()))
        data = _content(base, on_read)
    asked |= {key: value_of(base, key) for key in [*asked, *typed]}
    count = seeds or (3 if scale == "paper" else 1)
    return Plan(task, scale, base, tuple(range(first_seed, first_seed + count)), command, asked, data)


_CELLS_OWN = {
    "privacy.noise_multiplier": "studies have their own noise levels; choose with --only, as in --only z0.5",
    "server.optimizer": "studies have their own methods; choose with --only, as in --only fedadam",
    "seed": "use --seed, and --seeds for several",
    "name": "runs are named by what they are; choose a folder with --out",
    "task": "it is the study's; choose another study",
}


def _refuse_cells_own(typed: Sequence[str], settable: Sequence[str]) -> None:
    """Refuses settings that every cell sets itself: they would be ignored."""
    for key in typed:
        for own, instead in _CELLS_OWN.items():
            if own not in settable and (key == own or own.startswith(f"{key}.")):
                raise InputError(f"--set {key}: {instead}")


def _files(task: Task, given: Mapping[str, Any], on_read: OnRead | None) -> dict[str, Any]:
    """Settings of a cohort from files; where these name no hospitals, as many as in the paper."""
    from silodp.cohorts.inspection import recognise
    from silodp.cohorts.loading import read_store

    settings, catalogue, _ = recognise(given)
    store = read_store(settings, on_read, catalogue)
    needed = "mask" if task == "prostate" else "class"
    if store.target != needed:
        words = {"mask": "masks", "class": "classes"}
        raise InputError(
            f"--cohort {given['path']}: its targets are {words[store.target]}, this study needs "
            f"{words[needed]}; give other files, or choose another study"
        )
    chosen: dict[str, Any] = {"kind": settings.kind, "path": given["path"]}
    if not any(row.hospital is not None for row in store.rows):
        dealt = {"partition": "sizes", "sizes": SITES} if task == "prostate" else {"partition": "equal"}
        chosen |= {"hospitals": hospitals(task), **dealt}
    return chosen


def _content(base: Experiment, on_read: OnRead | None) -> str:
    """The hash of all images and targets; refuses, before any run, a cohort that does not fit the task."""
    from silodp.cohorts import load_cohort
    from silodp.runs.fitting import refuse_other_targets
    from silodp.tasks import task_named

    cohort = load_cohort(base.cohort, on_read)
    refuse_other_targets(cohort, task_named(base.task))
    return cohort.fingerprint()
