"""On a GPU: no step waits for the device, and what the engine costs over the bare loop.

1. Trains one hospital with PyTorch's synchronisation check on «error»: a step that waits is an exception.
2. A private round against the bare bfloat16 loop and the bare single-precision loop, same steps.

With --smoke it runs on a tiny cohort, without a GPU on the CPU, where nothing can be said of waiting.

    python benchmarks/gpu.py [PRESET [KEY=VALUE …] | --smoke]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from silodp import Experiment
from silodp.engines.in_process import InProcess
from silodp.hospital import Hospital
from silodp.local.jobs import batch_count, draw_job, planned_steps
from silodp.local.splitting import split_sizes
from silodp.local.trainer import network_input
from silodp.models import build_model
from silodp.privacy.ledger import Ledger
from silodp.runs.build import build
from silodp.runs.parts import Parts

SMOKE = ["cohort.slices=40", "cohort.image_size=32", "model.features=2", "model.levels=1"]


def hospitals_of(run: Parts) -> list[Hospital]:
    assert isinstance(run.engine, InProcess)
    return list(run.engine._hospitals.values())


def check_no_waiting(run: Parts) -> None:
    """Local training of one intermediary under the synchronisation check."""
    hospital = hospitals_of(run)[0]
    start = run.model.values.clone()
    chance = torch.Generator(run.trainer.device).manual_seed(0)
    state, examples = run.trainer.fresh_state(), hospital.parts["train"]
    job = draw_job(start, examples, state, run.trainer.settings, chance)
    run.trainer.train(job)  # warm
    torch.cuda.set_sync_debug_mode("error")
    try:
        run.trainer.train(job)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def now(device: torch.device) -> float:
    """Seconds, when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def bare_loop(run: Parts, intermediaries: int, precise: bool) -> float:
    """Seconds for the same steps: single precision as it comes, or bfloat16 and channels-last."""
    parts = [hospital.parts["train"] for hospital in hospitals_of(run)]
    channels, outputs = parts[0].images.shape[1], run.task.outputs(parts[0].targets)
    model = build_model(run.experiment.model, channels, outputs, 0).to(run.trainer.device)
    if not precise:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, amsgrad=True, fused=True)
    started = now(run.trainer.device)
    for examples in parts:
        for size in split_sizes(len(examples), intermediaries):
            order = torch.randperm(size, device=run.trainer.device)
            batches = order.tensor_split(batch_count(size, run.experiment.local.batch_size))
            for step in range(planned_steps(size, run.experiment.local)):
                batch = examples[batches[step % len(batches)]]
                images = batch.images.float().div_(127.5).sub_(1) if precise else network_input(batch.images)
                optimizer.zero_grad()
                with torch.autocast(run.trainer.device.type, torch.bfloat16, enabled=not precise):
                    logits = model(images).float()
                loss = run.task.loss(logits, batch.targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return now(run.trainer.device) - started


def main(words: list[str]) -> None:
    smoke = "--smoke" in words
    preset, *changes = ["prostate-small", *SMOKE] if smoke else words or ["prostate-paper"]
    on_gpu = torch.cuda.is_available() or not smoke
    experiment = Experiment.load(preset, [*changes, "rounds=3" if smoke else "rounds=6"])
    started = time.perf_counter()
    run = build(experiment, device="cuda" if on_gpu else "cpu")
    device = torch.cuda.get_device_name() if on_gpu else "the CPU"
    print(f"{preset} on {device}: set up in {time.perf_counter() - started:.0f} s")
    if on_gpu:
        check_no_waiting(run)
        print("no step of local training waits for the device")
    over_fast, over_precise, rates = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(Path(directory) / "ledger")
        for number, done in enumerate(run.federation.rounds(run.first_state(), ledger)):
            fast = bare_loop(run, done.plan.intermediaries, precise=False)
            precise = bare_loop(run, done.plan.intermediaries, precise=True)
            if number >= 2:  # v has settled, kernels are chosen
                over_fast.append(done.seconds / fast)
                over_precise.append(done.seconds / precise)
                rates.append(sum(run.federation.hospitals.values()) / done.seconds)
                print(
                    f"v {done.plan.intermediaries}: round {done.seconds:.2f} s, bf16 loop {fast:.2f} s",
                    flush=True,
                )
    print(f"{len(run.model):,} parameters, {statistics.median(rates):.0f} images/s")
    print(f"round over bare bfloat16 loop, median: {statistics.median(over_fast):.3f}")
    print(f"round over bare single-precision loop, median: {statistics.median(over_precise):.3f}")
    if on_gpu:
        print(f"peak device memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main(sys.argv[1:])
