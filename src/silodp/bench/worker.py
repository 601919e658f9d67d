"""One contestant's process: a round at once, then one for every line on standard input.

    python -m silodp.bench.worker '{"kind": "bare", "workload": {…}, "threads": 1}'

Each round is answered by a line, so that the referee's clock is the only one. Another framework's program
calls `finished_round` after every round of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

FINISHED = "silodp-bench: finished a round of"
"""Begins the answer; the number of local steps in it follows."""


def finished_round(steps: int) -> bool:
    """Tells the referee of a round and waits; whether there is to be another."""
    print(FINISHED, steps, flush=True)
    return bool(sys.stdin.readline())


def serve(round_: Callable[[], None], steps: int) -> None:
    """Rounds until nobody asks for another."""
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
