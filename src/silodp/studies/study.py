"""What a study is: cells to run, and what to write when they have run. Each table and figure is one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from silodp.experiment import Experiment
from silodp.privacy.events import Unit
from silodp.runs.folder import RunFolder, refuse_other_format
from silodp.runs.schema import (
    CohortFile,
    Record,
    RoundRecord,
    Summary,
    Tested,
    or_infinite,
    or_nan,
    read_as,
)
from silodp.studies.paper import METHODS, Task, noise_multipliers

if TYPE_CHECKING:
    from silodp.cohorts import HospitalData
    from silodp.studies.output import Results

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")

Work = Callable[[Experiment, Path, str], None]
"""What a cell does: (experiment, the run's folder, device)."""


def train_or_resume(experiment: Experiment, folder: Path, device: str) -> None:
    """A run from its start, or from where it was stopped; one that is finished is left alone."""
    from silodp.runs.training import resume, train

    if (folder / "summary.json").exists():
        return
    if (folder / "experiment.toml").exists():
        resume(folder, device=device)
    else:
        train(experiment, out=folder, device=device)


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        experiment: what is run.
        columns: where it stands in the study, such as {"z": 0.5}.
        work: what is done in its folder; it must be able to go on where it was stopped.
        product: the file that is there once the work is done.
        data: the hash of what the files of its cohort hold; empty for synthetic images.
    """

    experiment: Experiment
    columns: Mapping[str, str | int | float]
    work: Work = train_or_resume
    product: str = "summary.json"
    data: str = ""

    @property
    def folder_name(self) -> str:
        """Says what it is; the hash of settings and data makes sure: runs are shared and never mixed up."""
        settings = self.experiment.model_dump(mode="json", exclude={"name", "description"})
        if self.data:
            settings["data"] = self.data
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return f"{self.experiment.name}-{digest[:8]}"


def read_product(kind: type[Record], path: Path) -> Record:
    """A JSON file that a cell wrote; one that was damaged since is refused."""
    return read_as(kind, path, "remove this file and go on with --resume, which writes it anew")


@dataclass(frozen=True)
class Found:
    """A cell that has run."""

    cell: Cell
    folder: Path

    @cached_property
    def summary(self) -> Summary:
        refuse_other_format(self.folder)
        return read_product(Summary, self.folder / "summary.json")

    @cached_property
    def rounds(self) -> list[RoundRecord]:
        """The lines of metrics.jsonl."""
        return RunFolder(self.folder).metrics()

    @cached_property
    def training_images(self) -> dict[str, int]:
        """How many each hospital has, by cohort.json."""
        way_out = f"remove {self.folder} and go on with --resume, which trains it anew"
        file = read_as(CohortFile, self.folder / "cohort.json", way_out)
        return {name: parts["train"]["images"] for name, parts in file["hospitals"].items()}

    def test(self, metric: str, which: Tested = "last") -> float:
        """A test metric, mean over hospitals, of the last model or of the one best in validation."""
        return or_nan(self.summary["test"][which]["mean"][metric])

    def epsilon(self, unit: Unit) -> float:
        """ε of a unit; no number in the file means no guarantee."""
        return or_infinite(self.summary["epsilon"][unit])


@dataclass(frozen=True)
class Plan:
    """What every cell of a study starts from.

    Attributes:
        base: the experiment before a cell changes it; where the study has none of its own, the paper's method
            with DP-FedAvg.
        command: what was typed, for the reader of the results.
        changes: what was asked for besides task and scale, such as {"rounds": 50}; `base` has it already.
        data: see `Cell`.
        only: the part of the cells' names that was asked for; empty for all cells.
    """

    task: Task
    scale: Scale
    base: Experiment
    seeds: tuple[int, ...]
    command: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    only: str = ""

    @property
    def noise(self) -> tuple[float, ...]:
        """The paper's three z; smoke takes the middle one."""
        levels = noise_multipliers(self.task)
        return levels[1:2] if self.scale == "smoke" else levels

    @property
    def metrics(self) -> tuple[str, str]:
        """The two that the paper prints, the headline first."""
        return ("dice", "iou") if self.task == "prostate" else ("auc", "accuracy")

    @property
    def _hospitals(self) -> tuple[HospitalData, ...]:
        """Those that train; reads the cohort."""
        from silodp.cohorts import load_cohort

        return tuple(self.base.participation.training(load_cohort(self.base.cohort).hospitals))

    @cached_property
    def training_sizes(self) -> tuple[int, ...]:
        """Training images of each hospital that trains; reads the cohort."""
        return tuple(len(hospital.train) for hospital in self._hospitals)

    @cached_property
    def most_intermediaries(self) -> int:
        """The largest v for which every hospital that trains has images and patients; reads the cohort."""
        from silodp.local.splitting import room

        return min(room(self._hospitals, self.base.intermediaries.min_samples).values())

    @cached_property
    def parameters(self) -> int:
        """Of the network; reads the cohort."""
        from silodp.cohorts import load_cohort
        from silodp.runs.fitting import named_network

        network = named_network(self.base, load_cohort(self.base.cohort))
        return sum(weights.numel() for weights in network.parameters() if weights.requires_grad)

    def cell(
        self,
        z: float,
        split: bool,
        seed: int,
        *,
        optimizer: str = "fedavg",
        variant: str = "",
        changes: Mapping[str, Any] | None = None,
        **other: Any,
    ) -> Cell:
        """One run.

        Args:
            z: the noise multiplier; 0 is a run without privacy.
            split: whether hospitals are split into intermediaries, as the base's rule says.
            optimizer: of the server.
            variant: a word for what `changes` change besides.
            changes: settings, such as {"rounds": 300}.
            other: fields of `Cell`.
        """
        settings: dict[str, Any] = {
            "server.optimizer": optimizer,
            "privacy.noise_multiplier": z,
            "seed": seed,
        }
        if "server.learning_rate" not in self.changes:
            settings |= _server_rates(self.task, optimizer, bool(z))
        if not z:
            settings |= {"clipping.rule": "none"}
        if not (z and split):
            settings |= {"intermediaries.rule": "fixed", "intermediaries.count": 1}
        words = (
            optimizer,
            f"z{z:g}" if z else "no-privacy",
            "split" * (split and z > 0),
            variant,
            f"seed{seed}",
        )
        settings |= {"name": "-".join(filter(None, words)), **(changes or {})}
        columns: dict[str, str | int | float] = {
            "method": METHODS[optimizer],
            "z": z,
            "intermediaries": "with" if split and z else "without",
            "variant": variant,
            "seed": seed,
        }
        experiment = Experiment.build(self.base.model_dump(exclude_none=True), settings)
        return Cell(experiment, columns, data=self.data, **other)


@dataclass(frozen=True)
class Base:
    """What the cells of a study start from.

    Attributes:
        preset: its name.
        own: what is changed in it.
        file_size: width and height of images from files, where synthetic ones are of another size.
    """

    preset: str
    own: Mapping[str, Any] = field(default_factory=dict)
    file_size: int | None = None


@dataclass(frozen=True)
class Study:
    """A table or figure.

    Attributes:
        title: one line.
        cells: what must have run.
        results: what they say: tables, claims and pictures, which `output.write_study` writes.
        settable: what --set may change here though cells of other studies set it themselves.
        runs: how many at small scale with one seed, for the list: counting them may need the cohort.
        bases: what its cells start from at each scale; default: the paper's method for the task.
    """

    name: str
    title: str
    task: Task
    cells: Callable[[Plan], Sequence[Cell]]
    results: Callable[[Plan, Sequence[Found]], Results]
    runs: int = 0
    settable: tuple[str, ...] = ()
    bases: Mapping[Scale, Base] | None = None


def _server_rates(task: Task, optimizer: str, private: bool) -> dict[str, float]:
    """Learning rates of the authors' program, where the defaults (those for prostate) are not meant."""
    if task == "ich" and optimizer == "fedadam":
        return {"server.learning_rate": 0.003}
    if task == "ich" and optimizer == "dp2-rmsprop" and private:
        return {"server.learning_rate": 3e-5}
    return {}
