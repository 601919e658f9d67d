"""Where the time of a round goes, as a table: exclusive seconds of the parts that a round is made of.

Timers are put around functions by their names, and what one part calls is taken off its time and counted to
the part that it is; «the rest» is what no timer stands around. A name that is no longer there is said so.

    python benchmarks/profile_round.py [--workload tiny|unet] [--rounds N] [--threads 1] [--operators]

With --operators PyTorch's profiler prints the operators below the steps, by their own CPU time.
"""

from __future__ import annotations

import argparse
import sys
import time
from unittest import mock

import torch

from silodp.bench.federated import FederatedRounds
from silodp.bench.timers import Timers
from silodp.bench.workloads import SMOKE, TINY, UNET, Workload
from silodp.noise.streams import noise_of
from silodp.tables import markdown_table

PARTS: dict[str, tuple[str, ...]] = {
    "forward pass": ("silodp.local.trainer:LocalTrainer.forward",),
    "backward pass": ("torch:Tensor.backward", "torch.autograd:grad"),
    "local optimizer's step": ("silodp.local.optimizers:Adam.step",),
    "batches: slicing and bringing them to the network": (
        "silodp.cohorts.cohort:Examples.__getitem__",
        "silodp.local.trainer:network_input",
    ),
    "drawing jobs: generators, splits, orders": (
        "silodp.hospital:draw_job",
        "silodp.hospital:generator",
        "silodp.hospital:split",
    ),
    "putting θ and the optimizer's state back, seeding": (
        "silodp.local.parameters:FlatModel.load",
        "silodp.local.trainer:LocalTrainer.working_state",
        "silodp.local.trainer:LocalTrainer._seed_model",
    ),
    "rest of a local step; where stacked, all of it but Adam's": (
        "silodp.local.trainer:LocalTrainer.train",
        "silodp.local.trainer:LocalTrainer.step",
        "silodp.local.trainer:LocalTrainer._fill",
        "silodp.local.stacked:Stacked.train",
        "silodp.local.stacked:Stacked._step",
    ),
    "sketches for the diagnostics": ("silodp.hospital:sketch",),
    "clipping and adding up at the hospital": ("silodp.mechanism:Mechanism.encode",),
    "rest of a hospital's answer": ("silodp.hospital:Hospital.answer",),
    "checks and sum at the server": ("silodp.mechanism:Mechanism.decode",),
    "un-noised statistics at the server": ("silodp.mechanism:measured",),
    "ledger: reading, writing, fsync": (
        "silodp.privacy.ledger:Ledger.record",
        "silodp.privacy.ledger:Ledger.check",
    ),
}


def profile(workload: Workload, count: int, threads: int) -> None:
    rounds = FederatedRounds(workload, "cpu", {"threads": threads})
    timers = Timers()
    timed = mock.patch("silodp.federation.noise_of", lambda *given: timers.around("noise", noise_of(*given)))
    with timers, timed:
        for part, places in PARTS.items():
            for place in places:
                timers.put(part, place)
        timers.put_on("loss", rounds.parts.task, "loss")
        rounds.round()  # warms up
        timers.clear()
        started = time.perf_counter()
        for _ in range(count):
            rounds.round()
        whole = time.perf_counter() - started
    rounds.close()
    known = {*PARTS, *timers.seconds}
    rest = whole - sum(timers.seconds.values())
    shares = [(part, timers.seconds[part], f"{timers.calls[part] / count:,.0f}") for part in known]
    shares = [*sorted(shares, key=lambda one: -one[1]), ("the rest", rest, ""), ("a round", whole, "")]
    lines = [
        [part, f"{1e3 * seconds / count:.2f}", f"{seconds / whole:.1%}", calls]
        for part, seconds, calls in shares
    ]
    print(f"\n{workload.title}; {workload.steps} steps, {threads} threads, mean of {count} rounds")
    print(markdown_table(["part", "ms a round", "share", "calls"], lines), flush=True)
    for place in timers.missing:
        print(f"not there: {place}")


def operators(workload: Workload, threads: int) -> None:
    """One round under PyTorch's profiler."""
    rounds = FederatedRounds(workload, "cpu", {"threads": threads})
    rounds.round()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        rounds.round()
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=45))
    rounds.close()


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=("tiny", "unet"), help="default: both")
    parser.add_argument("--rounds", type=int, help="default: 20 of tiny, 3 of unet")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest size, one round")
    chosen = parser.parse_args(words)
    known = SMOKE if chosen.smoke else {"tiny": TINY, "unet": UNET}
    for name in [chosen.workload] if chosen.workload else list(known):
        if chosen.operators:
            operators(known[name], chosen.threads)
        else:
            count = 1 if chosen.smoke else chosen.rounds or {"tiny": 20, "unet": 3}[name]
            profile(known[name], count, chosen.threads)


if __name__ == "__main__":
    main(sys.argv[1:])
