"""Section 2.3: sample-level DP beside client-level DP at the same noise multiplier z.

1. Test Dice, and ε for a hospital, an intermediary and an image, of each and of training without privacy.
2. The drift ‖θ noisy − θ clean‖ of a model from noise-free training with the same clipping, batches and
   start: of DP-SGD over local steps, of DP-FedAvg over rounds, each beside the √t law for noise that adds up.

Everything on synthetic-mri, with a small U-Net (group norm, since BatchNorm mixes images) and local SGD.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from silodp.cohorts import load_cohort
from silodp.errors import InputError
from silodp.experiment import Experiment, delta_by_rule
from silodp.local_training import network_input
from silodp.models import build_model
from silodp.parameters import FlatModel
from silodp.privacy.accountants import spent
from silodp.privacy.theorems import accumulated_noise
from silodp.randomness import generator
from silodp.run_folder import RunFolder
from silodp.studies.sample_vs_client_output import (
    CLIENT,
    CLIPPED,
    PLAIN,
    SAMPLE,
    Drift,
    Row,
    Scale,
    write_all,
)
from silodp.tasks import task_named
from silodp.training import train

SCALES = {
    "smoke": Scale(
        slices=60, image_size=32, features=1, rounds=3, seeds=1, local_steps=6, repetitions=2, batch_size=4
    ),
    "small": Scale(
        slices=240, image_size=32, features=4, rounds=20, seeds=3, local_steps=80, repetitions=4
    ),
}  # fmt: skip

_CPU = torch.device("cpu")


def run(
    scale: Literal["smoke", "small"],
    out: Path,
    seed: int = 0,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Runs the study.

    Args:
        scale: "smoke" takes seconds and shows that it works; "small" takes minutes.
        out: a folder that is new or empty.
        seed: the first seed.
        on_progress: called after each part with what it was, how many are done, and how many there are.

    Returns:
        `out`, with results.csv, drift.csv, table.md, drift.svg, drift.png, and the run folders in runs/.
    """
    if scale not in SCALES:
        raise InputError(f"--scale {scale}: choose one of {', '.join(SCALES)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: exists already; give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    size, done = SCALES[scale], 0
    total = size.seeds * len(experiments(size, seed)) + size.repetitions + 1

    def report(label: str) -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(label, done, total)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # results depend on it
    try:
        rows, over_rounds = _runs(size, out / "runs", seed, report)
        over_steps = _local_drift(size, seed, report)
    finally:
        torch.set_num_threads(threads)
    write_all(out, size, rows, [over_steps, over_rounds])
    return out


def experiments(scale: Scale, seed: int) -> dict[str, Experiment]:
    """The runs by name: the same data, model, start and batches."""
    everywhere = {
        "rounds": scale.rounds,
        "seed": seed,
        "threads": 1,
        "diagnostics": False,
        "cohort": {"slices": scale.slices, "image_size": scale.image_size},
        "model": {"features": scale.features, "norm": "group"},
        "local": {
            "optimizer": "sgd",
            "momentum": 0.0,
            "learning_rate": scale.learning_rate,
            "batch_size": scale.batch_size,
        },
        "intermediaries": {"rule": "fixed", "count": 1},
        "clipping": {"rule": "none"},
    }
    quiet: dict[str, Any] = {"privacy.noise_multiplier": 0.0}
    noisy: dict[str, Any] = {"privacy.noise_multiplier": scale.noise_multiplier}
    clipped = {"clipping.rule": "fixed", "clipping.bound": scale.client_bound}
    by_image = {"privacy.level": "sample", "privacy.sample_clip_bound": scale.sample_bound}
    changes = {PLAIN: quiet, CLIENT: noisy | clipped, CLIPPED: quiet | clipped, SAMPLE: noisy | by_image}
    return {
        name: Experiment.build(everywhere, own | {"name": name.lower().replace(" ", "-")})
        for name, own in changes.items()
    }


def _runs(scale: Scale, folder: Path, seed: int, report: Callable[[str], None]) -> tuple[list[Row], Drift]:
    """Every run with every seed, and how far client-level noise drives the model from the run without it."""
    rows, repetitions, learnt = [], [], []
    for own_seed in range(seed, seed + scale.seeds):
        models: dict[str, list[Tensor]] = {}
        for name, experiment in experiments(scale, own_seed).items():
            row, models[name] = _run(name, experiment, folder / f"{experiment.name}-seed-{own_seed}")
            rows.append(row)
            report(f"{name}, seed {own_seed}")
        repetitions.append(_distances(models[CLIENT], models[CLIPPED]))
        start = _first_model(experiment).values
        learnt.append(_distances(models[CLIPPED], [start] * scale.rounds))
    hospitals = len(load_cohort(experiment.cohort).hospitals)
    law = _law(scale.rounds, rows[0].parameters, 1.0, scale.noise_multiplier, scale.client_bound, hospitals)
    means = [statistics.mean(column) for column in zip(*learnt, strict=True)]
    return rows, Drift("client", "round", repetitions, law, means)


def _run(name: str, experiment: Experiment, folder: Path) -> tuple[Row, list[Tensor]]:
    """One run, and its model after every round, from the checkpoints."""
    files, models = RunFolder(folder), []

    def keep(_: dict[str, Any]) -> None:
        checkpoint = files.load_checkpoint(_CPU)
        assert checkpoint is not None, "one is written every round"
        models.append(checkpoint["state"]["parameters"])

    result = train(experiment, out=folder, device="cpu", on_round=keep)
    image, image_delta = result.epsilon.image, delta_by_rule(experiment.cohort.slices)
    if image is None:  # nobody noises single images: one is as safe as its hospital when that is replaced
        image = spent(files.ledger().events, image_delta).replace_one.hospital
    row = Row(
        run=name,
        seed=experiment.seed,
        noise_multiplier=experiment.privacy.noise_multiplier,
        dice=result.test["dice"],
        epsilon_hospital=result.epsilon.hospital,
        epsilon_intermediary=result.epsilon.intermediary,
        epsilon_image=image,
        delta=result.summary["delta"],
        delta_image=image_delta,
        parameters=result.summary["parameters"],
    )
    return row, models


def _local_drift(scale: Scale, seed: int, report: Callable[[str], None]) -> Drift:
    """How far DP-SGD's noise drives the largest hospital's model; repetitions differ in the noise only."""
    from silodp.sample_level import SampleLevel

    experiment = experiments(scale, seed)[SAMPLE]
    largest = max(load_cohort(experiment.cohort).hospitals, key=lambda hospital: len(hospital.train))
    count = len(largest.train) // scale.batch_size  # whole batches, so that the law has one K
    examples, task = largest.train[: count * scale.batch_size], task_named("segmentation")
    model = _first_model(experiment)
    start = model.values.clone()

    def models(noise_multiplier: float, repetition: int) -> list[Tensor]:
        model.values.copy_(start)
        model.module.train()
        order, passed = generator(_CPU, seed, "batches"), []
        level = SampleLevel(noise_multiplier, scale.sample_bound)
        with level.gradients(model, task.image_losses, generator(_CPU, seed, "drift", repetition)) as fill:
            for number in range(scale.local_steps):
                if number % count == 0:
                    batches = torch.randperm(len(examples), generator=order).tensor_split(count)
                batch = examples[batches[number % count]]
                fill(network_input(batch.images), batch.targets)
                model.values.sub_(model.gradients, alpha=scale.learning_rate)
                passed.append(model.values.clone())
        return passed

    clean = models(0.0, 0)
    report("DP-SGD without noise")
    repetitions = []
    for number in range(1, scale.repetitions + 1):
        repetitions.append(_distances(models(scale.noise_multiplier, number), clean))
        report(f"DP-SGD, repetition {number}")
    rate, noise = scale.learning_rate, scale.noise_multiplier
    law = _law(scale.local_steps, len(model), rate, noise, scale.sample_bound, scale.batch_size)
    return Drift("sample", "local step", repetitions, law, _distances(clean, [start] * scale.local_steps))


def _first_model(experiment: Experiment) -> FlatModel:
    """The model that every run of this seed starts from; synthetic-mri has one channel and one mask."""
    return FlatModel(build_model(experiment.model, 1, 1, experiment.seed), _CPU)


def _distances(ones: Sequence[Tensor], others: Sequence[Tensor]) -> list[float]:
    return [float((one - other).double().norm()) for one, other in zip(ones, others, strict=True)]


def _law(count: int, parameters: int, rate: float, noise: float, bound: float, divisor: int) -> list[float]:
    """η·(z·bound/divisor)·√(t·d) for t = 1, 2, …: the length of noise that adds up on a flat loss."""
    return [
        accumulated_noise(rate, noise, bound, divisor, number) * math.sqrt(parameters)
        for number in range(1, count + 1)
    ]
