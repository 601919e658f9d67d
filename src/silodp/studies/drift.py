"""The drift of a model under noise: its distance from the same training without noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import TypedDict

from silodp.cohorts import load_cohort
from silodp.experiment import Experiment
from silodp.files import private_folder, replacing, write_json
from silodp.local.parameters import FlatModel
from silodp.local.trainer import network_input
from silodp.noise.streams import derive_seed, generator
from silodp.privacy.theorems import accumulated_noise
from silodp.runs.fitting import named_network
from silodp.runs.folder import RunFolder
from silodp.runs.schema import RoundRecord, or_nan
from silodp.runs.threads import threads
from silodp.studies.columns import select
from silodp.studies.study import CellRun, read_product, train_or_resume
from silodp.tasks import task_named


@dataclass(frozen=True)
class Drift:
    """Distance between a model and the same training without noise, after 1, 2, … steps or rounds.

    Attributes:
        level: "sample" or "client".
        over: what t counts, such as "round".
        repetitions: the drift in each repetition.
        law: the drift by the √t law.
        learnt: distance of training without noise from its start.
    """

    level: str
    over: str
    repetitions: list[list[float]]
    law: list[float]
    learnt: list[float]

    @property
    def mean(self) -> list[float]:
        return [statistics.mean(column) for column in zip(*self.repetitions, strict=True)]

    @property
    def exponent(self) -> float:
        """The p of drift ∝ t^p, fitted to the mean by least squares of the logarithms."""
        times = [math.log(number) for number in range(1, len(self.law) + 1)]
        return statistics.linear_regression(times, [math.log(drift) for drift in self.mean]).slope


def train_keeping_models(experiment: Experiment, folder: Path, device: str) -> None:
    """Trains or resumes a run and saves the model after every round in models/."""

    def keep(_: RoundRecord | None = None) -> None:
        checkpoint = RunFolder(folder).load_checkpoint(torch.device("cpu"))
        if checkpoint is not None:
            path = _model_path(folder, checkpoint["state"]["round"])
            private_folder(path.parent)
            with replacing(path) as file:
                torch.save(checkpoint["state"]["parameters"], file)

    if (folder / "experiment.toml").exists() and not (folder / "summary.json").exists():
        keep()  # the run may have been stopped between its checkpoint and its model
    train_or_resume(experiment, folder, device, on_round=keep)


def _model_path(folder: Path, round_: int) -> Path:
    return folder / "models" / f"{round_:04d}.pt"


class _DriftFile(TypedDict):
    """drift.json: one repetition of `Drift`; null where training diverged."""

    drift: list[float | None]
    learnt: list[float | None]
    law: list[float]


@dataclass(frozen=True)
class FollowDrift:
    """The work of a cell: the drift of DP-SGD in the largest hospital; repetitions differ in their noise."""

    steps: int
    repetition: int

    def __call__(self, experiment: Experiment, folder: Path, device: str) -> None:
        where = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
        with threads(experiment.threads):
            drift, learnt, parameters = self._follow(experiment, where)
        local, private = experiment.local, experiment.privacy
        law = _law(
            self.steps, parameters, local.learning_rate, private.noise_multiplier,
            private.gradient_bound, local.batch_size,
        )  # fmt: skip
        private_folder(folder)
        content: _DriftFile = {"drift": [*drift], "learnt": [*learnt], "law": law}
        write_json(folder / "drift.json", content, indent=None)

    def _follow(self, experiment: Experiment, device: torch.device) -> tuple[list[float], list[float], int]:
        """By step: the drift, and the distance of training without noise from its start; then d."""
        from silodp.local.sample_level import SampleLevel

        cohort, size, seed = load_cohort(experiment.cohort), experiment.local.batch_size, experiment.seed
        largest = max(cohort.hospitals, key=lambda hospital: len(hospital.train))
        count = max(1, len(largest.train) // size)  # whole batches, so that the law has one K
        examples = largest.train[: count * size].to(device)
        model, task = FlatModel(named_network(experiment, cohort), device), task_named(experiment.task)
        start = model.values.clone()

        def models(noise_multiplier: float, repetition: int) -> list[Tensor]:
            model.values.copy_(start)
            model.module.train()
            order, passed = generator(device, seed, "batches"), []
            level = SampleLevel(noise_multiplier, experiment.privacy.gradient_bound)
            own = derive_seed(seed, "drift", repetition)
            with level.gradients(model, task.image_losses, own) as fill:
                for number in range(self.steps):
                    if number % count == 0:
                        shuffled = torch.randperm(len(examples), generator=order, device=device)
                        batches = shuffled.tensor_split(count)
                    batch = examples[batches[number % count]]
                    fill(network_input(batch.images), batch.targets)
                    model.values.sub_(model.gradients, alpha=experiment.local.learning_rate)
                    passed.append(model.values.clone())
            return passed

        clean = models(0.0, 0)
        noisy = models(experiment.privacy.noise_multiplier, self.repetition)
        drift = [_distance(one, other) for one, other in zip(noisy, clean, strict=True)]
        return drift, [_distance(one, start) for one in clean], len(model)


def local_drift(found: Sequence[CellRun]) -> Drift | None:
    """The drift of DP-SGD from the files of `FollowDrift`; None without any."""
    files = [read_product(_DriftFile, one.folder / "drift.json") for one in found]
    if not files:
        return None
    drifts = [list(map(or_nan, file["drift"])) for file in files]
    return Drift("sample", "local step", drifts, files[0]["law"], list(map(or_nan, files[0]["learnt"])))


def client_drift(noisy: Sequence[CellRun], clean: Sequence[CellRun]) -> Drift | None:
    """The drift of client-level runs from the runs without noise, by the saved models; None without any."""
    repetitions, learnt = [], []
    for one in noisy:
        for other in select(clean, seed=one.cell.columns["seed"]):
            experiment = other.cell.experiment
            cohort = load_cohort(experiment.cohort)
            start = FlatModel(named_network(experiment, cohort), torch.device("cpu")).values
            models = [
                [torch.load(_model_path(run.folder, number)) for run in (one, other)]
                for number in range(1, experiment.rounds + 1)
            ]
            repetitions.append([_distance(with_noise, without) for with_noise, without in models])
            learnt.append([_distance(without, start) for _, without in models])
    if not repetitions:
        return None
    summary, experiment = noisy[-1].summary, noisy[-1].cell.experiment
    noise, bound = experiment.privacy.noise_multiplier, experiment.clipping.first_bound()
    assert bound is not None, "the study clips at a fixed bound"
    law = _law(experiment.rounds, summary["parameters"], 1.0, noise, bound, summary["members"])
    means = [statistics.mean(column) for column in zip(*learnt, strict=True)]
    return Drift("client", "round", repetitions, law, means)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).double().norm())


def _law(count: int, parameters: int, rate: float, noise: float, bound: float, divisor: int) -> list[float]:
    """η·(z·bound/divisor)·√(t·d) for t = 1, 2, …: the norm of noise that accumulates on a flat loss."""
    return [
        accumulated_noise(rate, noise, bound, divisor, number) * math.sqrt(parameters)
        for number in range(1, count + 1)
    ]
