"""Peak memory of a run against the number of intermediaries: flat, but for the states Adam keeps.

Each case is a process of its own. `fresh` keeps nothing between rounds; `kept` keeps three vectors of
the model's size for every intermediary, as the authors do; `median` must hold every update of a round.

    python benchmarks/memory.py [--smoke]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile

CASES = [
    ("quantile", "fresh"),
    ("fixed", "fresh"),
    ("quantile", "kept"),
    ("median", "fresh"),
]


def measure(rule: str, state: str, count: int, smoke: bool = False) -> int:
    """This process's peak resident memory in MiB after two rounds of U-Net 16."""
    from silodp import Experiment, train

    experiment = Experiment.load(
        "prostate-small",
        {
            "rounds": 2,
            "model.features": 2 if smoke else 16,
            "cohort.image_size": 32,
            "clipping.rule": rule,
            "local.state": state,
            "intermediaries.rule": "fixed",
            "intermediaries.count": count,
        }
        | ({"cohort.slices": 40} if smoke else {}),
    )
    with tempfile.TemporaryDirectory() as directory:
        train(experiment, out=f"{directory}/run", device="cpu")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(words: list[str]) -> None:
    if "--smoke" in words:
        print(f"peak MiB of this process, U-Net 2, v = 2: {measure('quantile', 'fresh', 2, smoke=True)}")
        return
    if words:
        rule, state, count = words
        print(measure(rule, state, int(count)))
        return
    counts = (1, 5, 20)
    print("peak MiB, U-Net 16 (7.4 MiB a vector), 6 hospitals; v =", *counts)
    for rule, state in CASES:
        peaks = [
            subprocess.run(
                [sys.executable, __file__, rule, state, str(count)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for count in counts
        ]
        print(f"{rule:9} {state:6}", *peaks, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
