"""How long ε takes: a ledger of 1,000 unlike rounds by the exact accountant, and sampled ones by the others.

python benchmarks/accountants.py [--smoke]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from silodp.privacy.accountants import Accountant, epsilon_bounds, spent
from silodp.privacy.events import Event


def ledger(rounds: int, rule: str = "all", rate: float = 1.0) -> list[Event]:
    """Every round with a v and a noise multiplier of its own."""
    rng = random.Random(random.random())  # a new one each time: figures are cached
    return [
        Event(t, "model update", True, 0.5 + rng.random(), rng.randint(1, 15), 1.0, rule, rate)  # type: ignore[arg-type]
        for t in range(1, rounds + 1)
    ]


def best(compute: Callable[[], object], times: int = 5) -> float:
    """Milliseconds of the fastest of a few."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        compute()
        seconds.append(time.perf_counter() - started)
    return 1e3 * min(seconds)


def main(words: list[str]) -> None:
    smoke = "--smoke" in words
    unlike, sampled = (10, 3) if smoke else (1000, 100)
    noise, v = (5.0, 1) if smoke else (1.0, 3)
    spent(ledger(2), 0.01)  # imports
    ledgers = [ledger(unlike) for _ in range(5)]
    took = best(lambda: spent(ledgers.pop(), 0.01))
    print(f"exact, {unlike:,} unlike rounds, both units and neighbours: {took:.1f} ms")
    events = [Event(t, "model update", True, noise, v, 1.0, "poisson", 0.3) for t in range(1, sampled + 1)]
    accountants: tuple[Accountant, ...] = ("pld", "prv", "rdp")
    for accountant in accountants:
        epsilon_bounds(events[:2], 0.01, accountant)
        deltas = [0.01 + 1e-6 * number for number in range(3)]
        took = best(lambda a=accountant, d=deltas: epsilon_bounds(events, d.pop(), a), 1 if smoke else 3)  # type: ignore[misc]
        print(f"{accountant}, {sampled} rounds, Poisson 0.3, both units and neighbours: {took:.0f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
