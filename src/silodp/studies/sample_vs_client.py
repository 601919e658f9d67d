"""Section 2.3: sample-level DP beside client-level DP at the same noise multiplier z.

1. Test Dice, and ε for a hospital, an intermediary and an image, of each and of training without privacy.
2. The drift ‖θ noisy − θ clean‖ of a model from noise-free training with the same clipping, batches and
   start: of DP-SGD over local steps, of DP-FedAvg over rounds, each beside the √t law for noise that adds up.

A small U-Net (group norm, since BatchNorm mixes images) with local SGD.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from silodp.cohorts import load_cohort
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.files import private_folder, replacing, to_json, write_atomically
from silodp.local.parameters import FlatModel
from silodp.local.trainer import network_input
from silodp.noise.streams import derive_seed, generator
from silodp.privacy.theorems import accumulated_noise
from silodp.runs.fitting import named_network
from silodp.runs.folder import RunFolder
from silodp.runs.schema import RoundRecord, or_nan
from silodp.studies.output import select
from silodp.studies.sample_vs_client_output import CLIENT, CLIPPED, LOCAL, PLAIN, SAMPLE, Drift, write_all
from silodp.studies.study import Cell, Found, Plan, Scale, Study, Work, read_product, train_or_resume
from silodp.tasks import task_named


@dataclass(frozen=True)
class _Size:
    """How much is run.

    Attributes:
        settings: of every run, besides what all scales share.
        local_steps: over which DP-SGD's drift is followed.
        repetitions: of that, with other noise.
    """

    settings: Mapping[str, Any]
    local_steps: int
    repetitions: int


_SMALL = {"cohort.slices": 240, "rounds": 20, "local.batch_size": 8}
_SIZES: dict[Scale, _Size] = {
    "smoke": _Size(
        {
            "cohort.slices": 60, "cohort.image_size": 32, "model.features": 4, "rounds": 3,
            "local.batch_size": 4,
        }, 6, 2,
    ),
    "small": _Size({**_SMALL, "cohort.image_size": 32, "model.features": 4}, 80, 4),
    "paper": _Size({**_SMALL, "cohort.image_size": 128, "model.features": 32}, 80, 4),
}  # fmt: skip

# C = 1 = η·c·steps, what 40 images in batches of 8 can reach in an epoch; section 2.3 has C = O(Tc).
_EVERYWHERE = {
    "checkpoint_every": 1,  # the models of the rounds are taken from there
    "diagnostics": False,
    "model.norm": "group",
    "local.optimizer": "sgd",
    "local.momentum": 0.0,
    "local.learning_rate": 1.0,
    "privacy.sample_clip_bound": 0.2,
}
_OF_IMAGES = ("privacy.sample_clip_bound", "privacy.image_delta")  # where noise is for images


def cells(plan: Plan) -> list[Cell]:
    """Four runs a seed, on the same data, model, start and batches; then DP-SGD in one hospital."""
    z, size = plan.base.privacy.noise_multiplier, _SIZES[plan.scale]
    if not z:
        raise InputError("privacy.noise_multiplier = 0: this study is about noise; give a number above 0")
    asked = {key: value for key, value in plan.changes.items() if not key.startswith(_OWN)}
    shared = {**_EVERYWHERE, **size.settings, **asked}
    bound = {"clipping.bound": shared.pop("clipping.bound", 1.0)}
    clipped = {"clipping.rule": "fixed", **bound}
    of_images = {key: shared.pop(key) for key in _OF_IMAGES if key in shared}
    at_images = {"clipping.rule": "none", "privacy.level": "sample", **of_images}
    kinds: list[tuple[str, float, dict[str, Any], Work]] = [
        (PLAIN, 0.0, {"clipping.rule": "none"}, train_or_resume),
        (CLIENT, z, clipped, train_keeping_models),
        (CLIPPED, 0.0, clipped, train_keeping_models),
        (SAMPLE, z, at_images, train_or_resume),
    ]
    runs = [
        plan.cell(noise, False, seed, variant=variant, changes=shared | changes, work=work)
        for seed in plan.seeds
        for variant, noise, changes, work in kinds
    ]
    if runs[0].experiment.rounds < 2:
        raise InputError("rounds = 1: this study follows drift over rounds; set rounds=2 or more")
    drifts = [
        plan.cell(
            z, False, plan.seeds[0], variant=f"{LOCAL}-{number}", changes=shared | at_images,
            work=_Drifting(size.local_steps, number), product="drift.json",
        )
        for number in range(1, size.repetitions + 1)
    ]  # fmt: skip
    return runs + [replace(cell, columns={**cell.columns, "variant": LOCAL}) for cell in drifts]


_OWN = (
    "seed", "server.", "privacy.noise_multiplier", "privacy.level", "clipping.rule", "intermediaries.",
    "checkpoint_every",
)  # fmt: skip
"""What makes one cell differ from another, or is needed by all: nobody's to set."""


def train_keeping_models(experiment: Experiment, folder: Path, device: str) -> None:
    """A run, or the rest of one, that leaves its model after every round in models/."""
    from silodp.runs.training import resume, train

    def keep(_: RoundRecord | None = None) -> None:
        checkpoint = RunFolder(folder).load_checkpoint(torch.device("cpu"))
        if checkpoint is not None:
            path = _model_path(folder, checkpoint["state"]["round"])
            private_folder(path.parent)
            with replacing(path) as file:
                torch.save(checkpoint["state"]["parameters"], file)

    if (folder / "summary.json").exists():
        return
    if (folder / "experiment.toml").exists():
        keep()  # the run may have been stopped between its checkpoint and its model
        resume(folder, device=device, on_round=keep)
    else:
        train(experiment, out=folder, device=device, on_round=keep)


def _model_path(folder: Path, round_: int) -> Path:
    return folder / "models" / f"{round_:04d}.pt"


class _DriftFile(TypedDict):
    """drift.json: after 1, 2, … steps, as `Drift`; null where training went beyond all numbers."""

    drift: list[float | None]
    learnt: list[float | None]
    law: list[float]


@dataclass(frozen=True)
class _Drifting:
    """Follows how far DP-SGD's noise drives the largest hospital's model; repetitions differ in the noise."""

    steps: int
    repetition: int

    def __call__(self, experiment: Experiment, folder: Path, device: str) -> None:
        where = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
        threads = torch.get_num_threads()
        torch.set_num_threads(experiment.threads or threads)  # results depend on it
        try:
            drift, learnt, parameters = self._follow(experiment, where)
        finally:
            torch.set_num_threads(threads)
        local, private = experiment.local, experiment.privacy
        law = _law(
            self.steps, parameters, local.learning_rate, private.noise_multiplier,
            private.gradient_bound, local.batch_size,
        )  # fmt: skip
        private_folder(folder)
        content: _DriftFile = {"drift": [*drift], "learnt": [*learnt], "law": law}
        write_atomically(folder / "drift.json", to_json(content).encode())

    def _follow(self, experiment: Experiment, device: torch.device) -> tuple[list[float], list[float], int]:
        """The drift and the way that training without noise went, after every step."""
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


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    runs = [one for one in found if one.cell.columns["variant"] != LOCAL]
    drifts = [_local_drift(select(found, variant=LOCAL)), _client_drift(runs)]
    write_all(out, plan, runs, [drift for drift in drifts if drift is not None])


def _local_drift(found: Sequence[Found]) -> Drift | None:
    files = [read_product(_DriftFile, one.folder / "drift.json") for one in found]
    if not files:
        return None
    drifts = [list(map(or_nan, file["drift"])) for file in files]
    return Drift("sample", "local step", drifts, files[0]["law"], list(map(or_nan, files[0]["learnt"])))


def _client_drift(found: Sequence[Found]) -> Drift | None:
    """How far client-level noise drives the model from the run without it, from the models of the rounds."""
    repetitions, learnt = [], []
    for noisy in select(found, variant=CLIENT):
        for clean in select(found, variant=CLIPPED, seed=noisy.cell.columns["seed"]):
            experiment = clean.cell.experiment
            cohort = load_cohort(experiment.cohort)
            start = FlatModel(named_network(experiment, cohort), torch.device("cpu")).values
            repetition, way = [], []
            for number in range(1, experiment.rounds + 1):
                one, other = (torch.load(_model_path(run.folder, number)) for run in (noisy, clean))
                repetition.append(_distance(one, other))
                way.append(_distance(other, start))
            repetitions.append(repetition)
            learnt.append(way)
    if not repetitions:
        return None
    summary, experiment = noisy.summary, noisy.cell.experiment
    noise, bound = experiment.privacy.noise_multiplier, experiment.clipping.first_bound()
    assert bound is not None, "the study clips at a fixed bound"
    law = _law(experiment.rounds, summary["parameters"], 1.0, noise, bound, summary["members"])
    means = [statistics.mean(column) for column in zip(*learnt, strict=True)]
    return Drift("client", "round", repetitions, law, means)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).double().norm())


def _law(count: int, parameters: int, rate: float, noise: float, bound: float, divisor: int) -> list[float]:
    """η·(z·bound/divisor)·√(t·d) for t = 1, 2, …: the length of noise that adds up on a flat loss."""
    return [
        accumulated_noise(rate, noise, bound, divisor, number) * math.sqrt(parameters)
        for number in range(1, count + 1)
    ]


SAMPLE_VS_CLIENT = Study(
    "sample-vs-client", "Section 2.3: sample-level beside client-level DP", "prostate", cells, write,
    settable=("privacy.noise_multiplier",),
)  # fmt: skip
