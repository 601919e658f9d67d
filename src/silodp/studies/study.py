"""A study: the cells to run for one table or figure, and what to write once they have run."""

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
from silodp.studies.paper import METHODS, METRICS, Task, noise_multipliers

if TYPE_CHECKING:
    from silodp.cohorts import HospitalData
    from silodp.runs.training import OnRound
    from silodp.studies.output import Results

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")

Work = Callable[[Experiment, Path, str], None]
"""What a cell does, from (experiment, folder of the run, device)."""


def train_or_resume(
    experiment: Experiment, folder: Path, device: str, on_round: OnRound | None = None
) -> None:
    """Trains a run, or resumes one that was stopped; a finished run is left alone."""
    from silodp.runs.training import resume, train

    if (folder / "summary.json").exists():
        return
    if (folder / "experiment.toml").exists():
        resume(folder, device=device, on_round=on_round)
    else:
        train(experiment, out=folder, device=device, on_round=on_round)


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        experiment: what is run.
        columns: its place in the tables of the study, such as {"z": 0.5}.
        work: done in its folder; called again after an interruption, it must continue.
        product: the file that exists once the work is done.
        data: hash of the contents of the cohort's files; empty for synthetic images.
    """

    experiment: Experiment
    columns: Mapping[str, str | int | float]
    work: Work = train_or_resume
    product: str = "summary.json"
    data: str = ""

    @property
    def folder_name(self) -> str:
        """Name and hash of settings and data, so that studies share equal runs and never mix up others."""
        settings = self.experiment.model_dump(mode="json", exclude={"name", "description"})
        if self.data:
            settings["data"] = self.data
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return f"{self.experiment.name}-{digest[:8]}"


def read_product(kind: type[Record], path: Path) -> Record:
    """Reads a JSON file that a cell wrote; a damaged one is refused."""
    return read_as(kind, path, "remove this file and go on with --resume, which writes it again")


@dataclass(frozen=True)
class CellRun:
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
        """Training images by hospital, from cohort.json."""
        way_out = f"remove {self.folder} and go on with --resume, which trains it again"
        file = read_as(CohortFile, self.folder / "cohort.json", way_out)
        return {name: parts["train"]["images"] for name, parts in file["hospitals"].items()}

    def test(self, metric: str, which: Tested = "last") -> float:
        """A test metric, mean over hospitals, of the last model or of the best one in validation."""
        return or_nan(self.summary["test"][which]["mean"][metric])

    def epsilon(self, unit: Unit) -> float:
        """ε of a unit; infinite where the file has null, which means no guarantee."""
        return or_infinite(self.summary["epsilon"][unit])


@dataclass(frozen=True)
class Plan:
    """What every cell of a study starts from.

    Attributes:
        base: the experiment before a cell changes it; by default the paper's method with DP-FedAvg.
        command: the command line, to be quoted in the results.
        changes: settings that the user gave, such as {"rounds": 50}; `base` includes them.
        data: see `Cell`.
        only: run only the cells with this in their names; empty: all.
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
        """The paper's three z; at smoke scale the middle one."""
        levels = noise_multipliers(self.task)
        return levels[1:2] if self.scale == "smoke" else levels

    @property
    def metrics(self) -> tuple[str, str]:
        """The two metrics that the paper prints, the headline first."""
        return METRICS[self.task]

    @property
    def ways(self) -> list[tuple[float, bool]]:
        """z and whether hospitals are split: without privacy, then at each z without and with."""
        return [(0.0, False), *((z, split) for z in self.noise for split in (False, True))]

    @property
    def _hospitals(self) -> tuple[HospitalData, ...]:
        """The hospitals that train; reads the cohort."""
        from silodp.cohorts import load_cohort

        return tuple(self.base.participation.training(load_cohort(self.base.cohort).hospitals))

    @cached_property
    def training_sizes(self) -> tuple[int, ...]:
        """Training images of each hospital that trains; reads the cohort."""
        return tuple(len(hospital.train) for hospital in self._hospitals)

    @cached_property
    def most_intermediaries(self) -> int:
        """The largest v that the images and patients of every training hospital allow; reads the cohort."""
        from silodp.local.splitting import room

        return min(room(self._hospitals, self.base.intermediaries.min_samples).values())

    @cached_property
    def parameters(self) -> int:
        """Trainable parameters of the network; reads the cohort."""
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
        """A cell of this plan.

        Args:
            z: the noise multiplier; 0 trains without privacy.
            split: whether hospitals are split into intermediaries, by the rule of `base`.
            optimizer: of the server.
            variant: a word for `changes` in the name of the run.
            changes: settings, such as {"rounds": 300}.
            other: further fields of `Cell`.
        """
        settings: dict[str, Any] = {"server.optimizer": optimizer, "privacy.noise_multiplier": z}
        if "server.learning_rate" not in self.changes:
            settings |= _server_rates(self.task, optimizer, bool(z))
        if not z:
            settings |= {"clipping.rule": "none"}
        if not (z and split):
            settings |= {"intermediaries.rule": "fixed", "intermediaries.count": 1}
        words = [optimizer, f"z{z:g}" if z else "no-privacy", "split" * (split and z > 0), variant]
        columns = {
            "method": METHODS[optimizer],
            "z": z,
            "intermediaries": "with" if split and z else "without",
            "variant": variant,
        }
        return self.named_cell(words, columns, seed, {**settings, **(changes or {})}, **other)

    def named_cell(
        self,
        words: Sequence[str],
        columns: Mapping[str, Any],
        seed: int,
        settings: Mapping[str, Any],
        **other: Any,
    ) -> Cell:
        """The cell with these settings and this seed, named by these words."""
        # Only what was set, so that defaults follow the settings.
        tree = self.base.model_dump(exclude_none=True, exclude_unset=True)
        name = "-".join(filter(None, [*words, f"seed{seed}"]))
        experiment = Experiment.build(tree, {**settings, "seed": seed, "name": name})
        return Cell(experiment, {**columns, "seed": seed}, data=self.data, **other)


@dataclass(frozen=True)
class Base:
    """What the cells of a study start from.

    Attributes:
        preset: its name.
        own: settings that replace those of the preset.
        file_size: width and height of images from files, where synthetic images have another size.
    """

    preset: str
    own: Mapping[str, Any] = field(default_factory=dict)
    file_size: int | None = None


@dataclass(frozen=True)
class Study:
    """A table or figure.

    Attributes:
        title: one line.
        cells: the runs that it needs.
        results: tables, claims and figures from these runs, which `output.write_study` writes.
        settable: settings that --set may change here though cells of other studies fix them.
        runs: number of cells at small scale with one seed, for the list (counting may need the cohort).
        bases: what its cells start from at each scale; default: the paper's method for the task.
    """

    name: str
    title: str
    task: Task
    cells: Callable[[Plan], Sequence[Cell]]
    results: Callable[[Plan, Sequence[CellRun]], Results]
    runs: int = 0
    settable: tuple[str, ...] = ()
    bases: Mapping[Scale, Base] | None = None


def value_of(experiment: Experiment, key: str) -> object:
    """A setting, such as "local.epochs"; None where the chosen rules have no such setting."""
    value: object = experiment
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _server_rates(task: Task, optimizer: str, private: bool) -> dict[str, float]:
    """Learning rates of the authors' program where they differ from the defaults (those for prostate)."""
    if task == "ich" and optimizer == "fedadam":
        return {"server.learning_rate": 0.003}
    if task == "ich" and optimizer == "dp2-rmsprop" and private:
        return {"server.learning_rate": 3e-5}
    return {}
