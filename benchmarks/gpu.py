"""On a GPU: images a second of whole private rounds, by executor, against the recorded step alone.

The step alone is one local step (forward, backward, Adam) in bfloat16, recorded and replayed without data or
anything around it: with one intermediary at a time that is the limit of a plain training loop, with four side
by side the limit of `executor = captured`. A round adds drawing and gathering batches, fresh states of the
optimizer, differences, norms, clipping, sums, noise, digests and the server's step. Images are random.

With --smoke it runs on a tiny network, without a GPU on the CPU, where nothing can be said of graphs.

    python benchmarks/gpu.py [256 128 96 densenet …] [--rounds 5] [--smoke]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from silodp import Cohort, Examples, Experiment, HospitalData
from silodp.engines.in_process import InProcess
from silodp.local.captured import LANES, Captured
from silodp.local.jobs import draw_job
from silodp.privacy.ledger import Ledger
from silodp.runs.build import build
from silodp.runs.parts import Parts
from silodp.tables import markdown_table

HOSPITALS = 6
UNET = {"kind": "unet", "features": 32, "norm": "batch"}
WORKLOADS: dict[str, dict[str, Any]] = {
    "256": {"model": UNET, "size": 256, "v": 15, "images": 360},
    "128": {"model": UNET, "size": 128, "v": 15, "images": 360},
    "96": {"model": UNET | {"features": 4}, "size": 96, "v": 15, "images": 360},
    "256-group": {"model": UNET | {"norm": "group"}, "size": 256, "v": 15, "images": 360},
    "128-group": {"model": UNET | {"norm": "group"}, "size": 128, "v": 15, "images": 360},
    "densenet": {
        "model": {"kind": "densenet", "features": 64, "norm": "batch"},
        "size": 224, "v": 4, "images": 128, "batch": 16,
    },
}  # fmt: skip
SMOKE = {"model": {"kind": "unet", "features": 2, "levels": 1}, "size": 16, "v": 2, "images": 16}


def cohort(task: str, size: int, images: int) -> Cohort:
    rng, hospitals = torch.Generator().manual_seed(0), []
    for number in range(HOSPITALS):
        pictures = torch.randint(0, 256, (images + 4, 1, size, size), generator=rng, dtype=torch.uint8)
        targets = (pictures > 127).byte() if task == "segmentation" else torch.arange(images + 4) % 2
        parts = [slice(images), slice(images, images + 2), slice(images + 2, None)]
        examples = [Examples(pictures[part], targets[part]) for part in parts]
        hospitals.append(HospitalData(f"hospital-{number}", *examples))
    return Cohort("random", tuple(hospitals))


def federation(workload: dict[str, Any], executor: str, rounds: int, device: str) -> Parts:
    task = "classification" if workload["model"]["kind"] == "densenet" else "segmentation"
    experiment = Experiment.build(
        {
            "task": task, "rounds": rounds, "diagnostics": False, "executor": executor,
            "model": workload["model"],
            "local": {"state": "fresh", "batch_size": workload.get("batch", 8)},
            "intermediaries": {"rule": "fixed", "count": workload["v"]}, "clipping": {"rule": "quantile"},
        }
    )  # fmt: skip
    given = cohort(task, workload["size"], workload["images"])
    return build(experiment, cohort=given, device=device)


def images_a_second(parts: Parts) -> tuple[float, float]:
    """Of the first round, which records, and of the others."""
    images, seconds = sum(parts.federation.hospitals.values()), []
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(Path(directory) / "ledger")
        started = time.perf_counter()
        for _ in parts.federation.rounds(parts.first_state(), ledger):
            if parts.trainer.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
            started = time.perf_counter()
    return images / seconds[0], images / statistics.median(seconds[1:])


def of_the_step_alone(parts: Parts, lanes: int, repeats: int = 100) -> float:
    """Images a second of a recorded step that is replayed and nothing else."""
    assert isinstance(parts.engine, InProcess)
    trainer, size = parts.trainer, parts.trainer.settings.batch_size
    examples = next(iter(parts.engine._hospitals.values())).parts["train"][:size]
    start = parts.model.values.clone()
    jobs = [
        draw_job(start, examples, None, trainer.settings, torch.Generator(trainer.device).manual_seed(lane))
        for lane in range(lanes)
    ]
    steps = Captured(trainer, lanes)._recorded(jobs)
    assert steps is not None, "these networks can be recorded"
    for _ in range(5):
        steps[0].graph.replay()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        steps[0].graph.replay()
    torch.cuda.synchronize()
    return repeats * lanes * size / (time.perf_counter() - started)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args(words)
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not given.smoke:
        raise SystemExit("PyTorch finds no GPU here; --smoke runs on a CPU")
    device, rounds = "cuda" if on_gpu else "cpu", 2 if given.smoke else given.rounds
    print(torch.cuda.get_device_name() if on_gpu else "the CPU: a trial of this program alone")
    lines = []
    for name, workload in ({"smoke": SMOKE} if given.smoke else WORKLOADS).items():
        if name not in given.workloads and not given.smoke:
            continue
        for executor in ("sequential", "captured") if on_gpu else ("sequential", "stacked"):
            parts = federation(workload, executor, rounds, device)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            first, others = images_a_second(parts)
            memory = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if on_gpu else "–"
            limits = [f"{of_the_step_alone(parts, lanes):,.0f}" for lanes in (1, LANES)] if on_gpu else []
            lines.append([name, f"{len(parts.model):,}", executor, f"{others:,.0f}", f"{first:,.0f}", memory])
            lines[-1] += limits or ["–", "–"]
            print(f"{name}, {executor}: {others:,.0f} images/s", flush=True)
    header = [
        "workload", "parameters", "executor", "images/s", "in the first round", "GiB", "the step alone",
        f"… {LANES} side by side",
    ]  # fmt: skip
    print(markdown_table(header, lines))


if __name__ == "__main__":
    main(sys.argv[1:])
