"""One program's process: a round at once, then one for every line on standard input.

    python -m silodp.bench.worker '{"kind": "bare", "workload": {…}, "threads": 1}'

It answers each round with a line, so that only the caller's clock is used. Programs of other frameworks call
`finished_round` after each of their rounds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

FINISHED = "silodp-bench: finished a round of"
"""Begins the answer; the number of local steps in it follows."""


def finished_round(steps: int) -> bool:
    """Reports a finished round and waits; whether another one is wanted."""
    print(FINISHED, steps, flush=True)
    return bool(sys.stdin.readline())


def serve(round_: Callable[[], None], steps: int) -> None:
    """Runs rounds as long as they are wanted."""
    round_()
    while finished_round(steps):
        round_()


def main(words: list[str]) -> None:
    from silodp.bench.workloads import Workload

    given: dict[str, Any] = json.loads(words[0])
    kind, workload = given.pop("kind"), Workload(**given.pop("workload"))
    if kind == "bare":
        import torch

        from silodp.bench.bare import BareLoop

        torch.set_num_threads(given.pop("threads"))
        loop = BareLoop(workload, **given)
        serve(loop.round, loop.steps)
    else:
        from silodp.bench.federated import FederatedRounds

        rounds = FederatedRounds(workload, given["device"], given["settings"])
        serve(rounds.round, rounds.steps)
        rounds.close()


if __name__ == "__main__":
    main(sys.argv[1:])
