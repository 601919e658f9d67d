"""Lists the runs in folders with their progress; a run that cannot be read is listed as damaged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from silodp.errors import InputError
from silodp.experiment import ResolvedExperiment
from silodp.privacy.ledger import Reading, read_ledger
from silodp.runs.consistency import RunFiles, conflicts, read_run_files
from silodp.runs.folder import OtherFormat, read_experiment
from silodp.runs.places import last_written, runs_in
from silodp.runs.record import epsilon_of, epsilon_record
from silodp.runs.schema import EpsilonRecord
from silodp.tasks import task_named

State = Literal["finished", "stopped", "unfinished", "damaged", "other-format"]


@dataclass(frozen=True)
class Listed:
    """A run in a list.

    Attributes:
        name: the experiment's.
        state: "stopped" is by its budget.
        problem: why it cannot be read; empty where it can.
        rounds: done, of those planned.
        epsilon: by the ledger; None before the first release.
        part: the images that the headline metric is of, "test" or "validation".
        when: time of the last change.
    """

    folder: Path
    when: datetime
    state: State
    problem: str = ""
    name: str = ""
    rounds: int = 0
    planned: int = 0
    epsilon: EpsilonRecord | None = None
    headline: str = ""
    value: float | None = None
    part: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self) | {"folder": str(self.folder), "when": self.when.isoformat(timespec="seconds")}


def list_runs(folders: Sequence[Path]) -> list[Listed]:
    """Lists the run of each folder, or the runs in it, sorted by name, numbers by value."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give one that holds runs, such as runs")
        for run in runs_in(folder):
            found.setdefault(run.resolve(), run)
    return [_listed(run) for run in sorted(found.values(), key=_by_name)]


def _by_name(folder: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(folder))]


def _listed(folder: Path) -> Listed:
    when = datetime.fromtimestamp(last_written(folder)).astimezone()
    try:
        return _read(folder, when)
    except (InputError, OSError) as error:
        state: State = "other-format" if isinstance(error, OtherFormat) else "damaged"
        return Listed(folder, when, state, str(error))


def _read(folder: Path, when: datetime) -> Listed:
    experiment = read_experiment(folder)
    files = read_run_files(folder)  # before the ledger, which only grows
    path = folder / "ledger.jsonl"
    ledger = read_ledger(path) if path.exists() else Reading([], [], 0, False)
    problems = conflicts(files, ledger.events, ledger.chains)
    summary, last = files.summary, files.metrics[-1] if files.metrics else None
    headline = task_named(experiment.task).headline
    rounds = summary["rounds"] if summary else last["round"] if last else 0
    state: State = "unfinished"
    if problems:
        state = "damaged"
    elif summary is not None and summary["stopped"]:
        state = "stopped"
    elif summary is not None and rounds >= experiment.rounds:
        state = "finished"
    metrics = summary["test"]["last"]["mean"] if summary else last["validation"]["mean"] if last else {}
    return Listed(
        folder, when, state, f"{folder}: {problems[0]}" if problems else "", experiment.name, rounds,
        experiment.rounds, _epsilon(experiment, files, ledger), headline, metrics.get(headline),
        "test" if summary else "validation",
    )  # fmt: skip


def _epsilon(experiment: ResolvedExperiment, files: RunFiles, ledger: Reading) -> EpsilonRecord | None:
    """The recorded ε, if it is of the whole ledger; else it is computed."""
    if not ledger.events:
        return None
    for record in (files.summary, *files.metrics[-1:]):
        if record is not None and record["ledger"] == ledger.chains[-1]:
            return record["epsilon"]
    return epsilon_record(epsilon_of(experiment, ledger.events))
