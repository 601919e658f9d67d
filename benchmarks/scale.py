"""What grows with a federation, and what does not: four tables.

cases        seconds a local step and peak memory for N hospitals of v intermediaries, each case a process.
             All hospitals look at the same images: what is measured is the federation, not its data.
aggregation  clipping, adding up and noise of updates of 8 million parameters, in bytes that must be moved
             whatever the program, over the machine's memory bandwidth, measured in the same run.
records      what accounting, ledger, metrics and checkpoint take of a run's rounds.
noise        of the system's entropy against the seed's, 7.76 million numbers.

    python benchmarks/scale.py [cases|aggregation|records|noise …] [--repeats 5] [--threads N] [--smoke]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from silodp import train
from silodp.bench.federated import FederatedRounds
from silodp.bench.timers import Timers
from silodp.bench.workloads import SMOKE, TINY, UNET, Workload
from silodp.cohorts import Cohort, HospitalData
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, RoundPlan
from silodp.noise.streams import NoiseSource, noise_of
from silodp.runs.schema import RoundRecord
from silodp.tables import markdown_table

TABLES = ("cases", "aggregation", "records", "noise")
HOSPITALS, INTERMEDIARIES = (10, 100, 1000), (1, 8, 32)
PAPER = (6, 15)  # hospitals and intermediaries a hospital of the paper's prostate runs at z = 0.5
PARAMETERS = 8_000_000
NUMBERS = 7_756_577  # parameters of the paper's U-Net
LONG = 10.0  # seconds after which a round is not repeated


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    """After one that warms up."""
    work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


class OneHospitalsImages(Workload):
    """A workload whose hospitals all have the images of one."""

    def cohort(self) -> Cohort:
        (one,) = replace(Workload(**self.to_dict()), hospitals=1).cohort().hospitals
        names = (f"hospital-{number}" for number in range(self.hospitals))
        return Cohort(self.name, tuple(HospitalData(name, *one.parts.values()) for name in names))


def case(hospitals: int, intermediaries: int, diagnostics: bool) -> dict[str, float]:
    """In this process: what one federation takes."""
    given = TINY.to_dict() | {"hospitals": hospitals, "intermediaries": intermediaries}
    settings = {"diagnostics": diagnostics, "threads": 1}
    FederatedRounds(replace(TINY, hospitals=1, intermediaries=1), "cpu", settings).round()  # warms up
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    rounds = FederatedRounds(OneHospitalsImages(**given), "cpu", settings)
    built, seconds = time.perf_counter() - started, list[float]()
    while not seconds or (len(seconds) < 3 and sum(seconds) < LONG):
        started = time.perf_counter()
        rounds.round()
        seconds.append(time.perf_counter() - started)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = rounds.steps
    rounds.close()
    return {
        "steps": steps, "built": built, "seconds": statistics.median(seconds), "first": seconds[0],
        "peak": after / 1024, "more": (after - before) / 1024,
    }  # fmt: skip


def cases(smoke: bool) -> None:
    lines = []
    every = [(number, v, False) for number in HOSPITALS for v in INTERMEDIARIES]
    for number, v, diagnostics in [(3, 2, True)] if smoke else [*every, (1000, 8, True)]:
        if smoke:
            found = case(number, v, diagnostics)
        else:
            command = [sys.executable, __file__, "--case", json.dumps([number, v, diagnostics])]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
        lines.append(
            [
                f"{number:,}", str(v), "yes" if diagnostics else "no", f"{found['steps']:,.0f}",
                f"{found['seconds']:.2f}", f"{1e3 * found['seconds'] / found['steps']:.2f}",
                f"{found['first'] / found['seconds']:.2f}", f"{found['built']:.2f}", f"{found['peak']:.0f}",
                f"{found['more']:.0f}",
            ]
        )  # fmt: skip
        print(f"{number} hospitals of {v}: done", file=sys.stderr, flush=True)
    header = [
        "hospitals", "v", "diagnostics", "steps a round", "seconds a round", "ms a step", "first / others",
        "building, s", "peak, MiB", "of it for this federation",
    ]  # fmt: skip
    print(f"\ncases: {TINY.network}, one thread\n{markdown_table(header, lines)}")


def bandwidth(repeats: int, smoke: bool) -> float:
    """Bytes a second of a = b + 2c on vectors that no cache holds: two reads and a write a number."""
    count = 10**5 if smoke else 2**26
    a, b, c = (torch.ones(count) for _ in range(3))
    return 12 * count / median_seconds(lambda: torch.add(b, c, alpha=2.0, out=a), repeats)


def aggregation(repeats: int, smoke: bool) -> None:
    """Each cost is that of one more: so what a call costs in any case does not hide it."""
    size, many = (1000, 2) if smoke else (PARAMETERS, 4)
    experiment = TINY.experiment({"threads": torch.get_num_threads()}).resolve(many, torch.get_num_threads())
    mechanism, start = Mechanism.of(experiment, [80] * many), torch.zeros(size)
    names = [f"hospital-{number}" for number in range(many)]
    update = torch.randn(size).div_(size**0.5).mul_(2)

    def encoded(v: int) -> torch.Tensor:
        return mechanism.encode(RoundPlan(1, start, v, 1.0), (update for _ in range(v)), "hospital")[0]

    numbers = encoded(1)

    def decoded(hospitals: int, noise: NoiseSource) -> None:
        plan = RoundPlan(1, start, 1, 1.0)
        plan.__dict__["digest"] = "known"  # hashing θ is no part of the sum
        answers = [Contribution(name, 1, "known", numbers) for name in names[:hospitals]]
        mechanism.decode(plan, names[:hospitals], answers, noise)

    still = torch.zeros(size, dtype=torch.float64)
    seconds = {
        "one": median_seconds(lambda: encoded(1), repeats),
        "more": median_seconds(lambda: encoded(1 + many), repeats),
        "server": median_seconds(lambda: decoded(1, lambda *_: still.clone()), repeats),
        "servers": median_seconds(lambda: decoded(many, lambda *_: still.clone()), repeats),
        "noise": median_seconds(lambda: decoded(1, noise_of(0, 1)), repeats),
    }
    speed = bandwidth(repeats, smoke)
    an_update = (seconds["more"] - seconds["one"]) / many
    an_answer = (seconds["servers"] - seconds["server"]) / (many - 1)
    parts = {
        "an update: its norm; clipped, added (4 + 12 B)": (16, an_update),
        "a hospital's sum to whole numbers (4 + 8 B)": (12, seconds["one"] - an_update),
        "an answer at the server: checked, added (8 + 24 B)": (32, an_answer),
        "the mean, without drawing noise (8 + 4 B)": (12, seconds["server"] - an_answer),
        "drawing noise from the seed, and the mean (8 + 4 B)": (12, seconds["noise"] - an_answer),
    }
    counted = [*list(parts.values())[:3], list(parts.values())[4]]
    for hospitals, updates in ((many, 8), PAPER):
        counts = (hospitals * updates, hospitals, hospitals, 1)
        parts[f"a round of {hospitals} hospitals x {updates} updates, of these parts"] = (
            sum(moved * count for (moved, _), count in zip(counted, counts, strict=True)),
            sum(each * count for (_, each), count in zip(counted, counts, strict=True)),
        )
    lines = [
        [part, str(moved), f"{1e3 * each:.1f}", f"{moved * size / each / 1e9:.1f}",
         f"{moved * size / each / speed:.0%}"]
        for part, (moved, each) in parts.items()
    ]  # fmt: skip
    header = ["part", "bytes a number", "ms", "GB/s", "of the bandwidth"]
    print(f"\naggregation: {size:,} parameters; {torch.get_num_threads()} threads, {speed / 1e9:.1f} GB/s")
    print(markdown_table(header, lines))


RECORDS = {
    "ε after every round": ("silodp.runs.training:epsilon_of",),
    "ledger": tuple(f"silodp.privacy.ledger:Ledger.{name}" for name in ("record", "check", "head_after")),
    "metrics.jsonl": ("silodp.runs.training:round_record", "silodp.runs.folder:RunFolder.add_metrics"),
    "checkpoint": ("silodp.runs.training:_Run.save",),
    "validation": ("silodp.engines.in_process:InProcess.evaluate",),
}


def records(workload: Workload, rounds: int) -> None:
    """A whole run, as `silodp.train` does it; the first round, which imports the accountants, is left out."""
    training: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Timers() as timers:
        for part, places in RECORDS.items():
            for place in places:
                timers.put(part, place)
        assert not timers.missing, timers.missing

        def on_round(record: RoundRecord) -> None:
            if record["round"] > 1:
                training.append(record["training_seconds"])
            else:
                timers.clear()

        train(
            workload.experiment({"rounds": rounds + 1, "threads": 1, "privacy.delta": 1e-5}),
            out=Path(folder) / "run", device="cpu", on_round=on_round,
            cohort=workload.cohort(), model=workload.make_network(),
        )  # fmt: skip
    whole = sum(training)
    lines = [
        [part, f"{1e3 * timers.seconds[part] / rounds:.2f}", f"{timers.seconds[part] / whole:.2%}"]
        for part in RECORDS
    ]
    print(f"\nrecords: {workload.name}, {rounds} rounds of {whole / rounds:.3f} s")
    print(markdown_table(["part", "ms a round", "of the rounds"], lines), flush=True)


def noise(repeats: int, smoke: bool) -> None:
    hidden = torch.zeros(1000 if smoke else NUMBERS, dtype=torch.float64)
    sources = {"the seed": noise_of(0, 1), "the system": noise_of(None, 1)}
    seconds = {
        name: median_seconds(lambda draw=draw: draw(hidden, "", len(hidden)), repeats)  # type: ignore[misc]
        for name, draw in sources.items()
    }
    print(f"\nnoise: {len(hidden):,} numbers; {torch.get_num_threads()} threads")
    for name, each in seconds.items():
        print(f"from {name}: {each:.3f} s, {each / seconds['the seed']:.2f} times the seed's")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of aggregation and noise; default: all")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, everything in this process")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    chosen = parser.parse_args(words)
    if unknown := set(chosen.tables) - set(TABLES):
        parser.error(f"{min(unknown)}: choose of {', '.join(TABLES)}")
    if chosen.case:
        print(json.dumps(case(*json.loads(chosen.case))))
        return
    repeats, tables = 1 if chosen.smoke else chosen.repeats, chosen.tables or TABLES
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    if "aggregation" in tables:
        aggregation(repeats, chosen.smoke)
    if "noise" in tables:
        noise(repeats, chosen.smoke)
    if "records" in tables:
        for workload, rounds in [(SMOKE["tiny"], 2)] if chosen.smoke else [(TINY, 60), (UNET, 5)]:
            records(workload, rounds)
    if "cases" in tables:
        cases(chosen.smoke)


if __name__ == "__main__":
    main(sys.argv[1:])
