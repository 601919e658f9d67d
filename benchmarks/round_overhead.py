"""How much a private round costs over the bare training loop with the same steps.

Both run in this process, in turn, on the same data: the bare loop is an ordinary PyTorch model with an
ordinary fused Adam; the round adds splitting, optimizer states, differences, norms, clipping, the sum,
noise, the ledger's digest and fsync, and the server step. Validation and the checkpoint are timed apart.

    python benchmarks/round_overhead.py [PRESET [REPEATS] | --smoke]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from silodp import Experiment
from silodp.cohorts import load_cohort
from silodp.local.splitting import split_sizes
from silodp.local.steps import batch_count, planned_steps
from silodp.local.trainer import network_input
from silodp.models import build_model
from silodp.runs.build import build
from silodp.runs.folder import RunFolder
from silodp.runs.training import _Run
from silodp.tasks import task_named


def bare_loop(experiment: Experiment, intermediaries: int) -> float:
    """Seconds for the same optimizer steps on the same batch sizes, and nothing else."""
    cohort, task = load_cohort(experiment.cohort), task_named(experiment.task)
    images = cohort.hospitals[0].train.images
    outputs = task.outputs(cohort.hospitals[0].train.targets)
    model = build_model(experiment.model, images.shape[1], outputs, 0)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), experiment.local.learning_rate, amsgrad=True, fused=True)
    started = time.perf_counter()
    for hospital in cohort.hospitals:
        for size in split_sizes(len(hospital.train), intermediaries):
            batches = torch.randperm(size).tensor_split(batch_count(size, experiment.local.batch_size))
            for step in range(planned_steps(size, experiment.local)):
                batch = hospital.train[batches[step % len(batches)]]
                optimizer.zero_grad()
                loss = task.loss(model(network_input(batch.images)), batch.targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return time.perf_counter() - started


SMOKE = {"cohort.slices": 40, "cohort.image_size": 32, "model.features": 2, "model.levels": 1}


def main(words: list[str]) -> None:
    smoke = "--smoke" in words
    preset = words[0] if words and not smoke else "prostate-small"
    repeats = 1 if smoke else int(words[1]) if len(words) > 1 else 10
    experiment = Experiment.load(preset, {"rounds": repeats + 1} | (SMOKE if smoke else {}))
    torch.set_num_threads(experiment.threads or torch.get_num_threads())
    run = _Run(build(experiment, device="cpu"))
    with (
        tempfile.TemporaryDirectory() as directory,
        RunFolder.create(Path(directory) / "run", run.experiment) as folder,
    ):
        ledger = folder.ledger()
        ratios, checkpoints, validations = [], [], []
        for number, done in enumerate(run.federation.rounds(run.state, ledger)):
            bare = bare_loop(run.experiment, done.plan.intermediaries)
            started = time.perf_counter()
            run.save(folder, ledger)
            saved = time.perf_counter()
            run.engine.evaluate(run.state.model, "validation", thorough=False)
            validated = time.perf_counter()
            if number == 0:
                continue  # the first round warms up the kernels of both
            ratios.append(done.seconds / bare)
            checkpoints.append((saved - started) / bare)
            validations.append((validated - saved) / bare)
            print(f"round {done.seconds:.2f} s, bare loop {bare:.2f} s, ratio {ratios[-1]:.3f}", flush=True)
        print(
            f"{preset}, v = {done.plan.intermediaries}, {len(run.parts.model):,} parameters, {repeats} rounds"
        )
        print(f"round over bare loop, median: {statistics.median(ratios):.3f}")
        print(f"checkpoint over bare loop, median: {statistics.median(checkpoints):.3f}")
        print(f"validation over bare loop, median: {statistics.median(validations):.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
