"""Reads the folder of a run for a page; nothing is changed, so the run may still be training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from silodp.errors import InputError
from silodp.experiment import ResolvedExperiment
from silodp.privacy.events import UNITS, Unit
from silodp.runs.folder import RunFolder, read_experiment, refuse_personal
from silodp.runs.schema import CohortFile, ModelTest, RoundRecord, Summary, Tested, or_infinite
from silodp.runs.statement import Statement, read_statement
from silodp.tasks import task_named

LEAVE_OUT = "restore the file, or remove it to leave that part out"


@dataclass(frozen=True)
class Run:
    """The content of a run's folder.

    Attributes:
        label: a letter where several runs are compared, else empty.
        metrics: a record for each round; NaN and infinity are None.
        cohort: cohort.json; None before a run has written it.
        summary: summary.json; None while the run is unfinished.
        statement: the account of the ledger; None where the ledger is missing or damaged.
        problems: of the ledger, to be shown first.
    """

    folder: Path
    label: str
    name: str
    experiment: ResolvedExperiment
    metrics: list[RoundRecord]
    cohort: CohortFile | None
    summary: Summary | None
    statement: Statement | None
    problems: tuple[str, ...]

    @property
    def headline(self) -> str:
        return task_named(self.experiment.task).headline

    @property
    def rounds(self) -> int:
        """Finished rounds."""
        return self.metrics[-1]["round"] if self.metrics else 0

    @property
    def hospitals(self) -> list[str]:
        if self.cohort:
            return list(self.cohort["hospitals"])
        return list(self.metrics[0]["validation"]["hospitals"]) if self.metrics else []

    @property
    def has_figures(self) -> bool:
        """Whether any hospital shares figures on its images; in a simulation all do."""
        test = self.test("last")
        return any(record["validation"]["hospitals"] for record in self.metrics) or bool(
            test and test["hospitals"]
        )

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.cohort["classes"]] if self.cohort else []

    @property
    def is_protected(self) -> bool:
        """Whether any ε of it is finite."""
        return self.statement is not None and math.isfinite(self.epsilon("hospital"))

    def epsilon(self, unit: Unit) -> float:
        """ε by the ledger, for add-or-remove neighbours."""
        assert self.statement is not None
        return self.statement.figures[unit, "add-or-remove"].epsilon

    def test(self, which: Tested) -> ModelTest | None:
        """Test metrics of the last or the best round; None while the run is unfinished."""
        return self.summary["test"][which] if self.summary else None


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Folders of runs: each path, or the runs directly inside it, as after `silodp demo`."""
    found: dict[Path, Path] = {}
    for path in paths:
        inside = sorted(file.parent for file in path.glob("*/experiment.toml")) if path.is_dir() else []
        is_run = (path / "experiment.toml").is_file()
        for run in [path] if is_run or not inside else inside:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads runs in the given order; several get letters as labels."""
    if not folders:
        raise InputError("report: give the folder of a run, such as runs/demo-1")
    for folder in folders:
        refuse_personal(folder, "give the folder of the run, or use `silodp evaluate` without --page")
    experiments = [read_experiment(folder) for folder in folders]
    names = [experiment.name for experiment in experiments]
    if len(set(names)) < len(names):  # seeds of one experiment, say
        names = [folder.resolve().name for folder in folders]
    several = len(folders) > 1
    return [
        _read(folder, experiment, name, _letters(number) if several else "")
        for number, (folder, experiment, name) in enumerate(zip(folders, experiments, names, strict=True))
    ]


def _read(folder: Path, experiment: ResolvedExperiment, name: str, label: str) -> Run:
    files = RunFolder(folder)
    metrics = files.metrics()  # before the ledger, which only grows
    cohort, summary = files.cohort(LEAVE_OUT), files.summary(LEAVE_OUT)
    statement: Statement | None = None
    problems: tuple[str, ...] = ()
    begun = bool(metrics) or summary is not None or (folder / "ledger.jsonl").exists()
    if begun:
        try:
            statement = read_statement(folder)
            problems = (*statement.problems, *_against_summary(statement, summary))
        except InputError as error:
            problems = (str(error),)
    return Run(folder, label, name, experiment, metrics, cohort, summary, statement, problems)


def _against_summary(statement: Statement, summary: Summary | None) -> list[str]:
    """Problems where summary.json contradicts the ledger, which counts."""
    if summary is None:
        return []
    problems = []
    for unit in UNITS:
        claimed = or_infinite(summary["epsilon"][unit])
        counted = statement.figures[unit, "add-or-remove"].epsilon
        if claimed != counted and not math.isclose(claimed, counted, rel_tol=1e-6):
            problems.append(
                f"summary.json says ε {claimed:,.1f} for one {unit}, the ledger adds up to {counted:,.1f}"
            )
    return problems


def _letters(number: int) -> str:
    """A … Z, AA, AB, …"""
    first, last = divmod(number, 26)
    return (_letters(first - 1) if first else "") + chr(ord("A") + last)
