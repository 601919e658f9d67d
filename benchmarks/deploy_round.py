"""How long a round's messages are on their way: to three hospitals and back, over TLS, on one machine.

Nobody trains: each hospital's link, a process of its own, sends back what it gets. The way is that of a
deployment: SuperLink, nginx, node keys. Goals: 1 s for small messages, 4 s for the 31 MB of a U-Net 32.

    python benchmarks/deploy_round.py [--rounds 10] [--database] [--smoke]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/engines/flower"))

from flower_stage import HOSPITALS, Stage  # type: ignore[import-not-found]
from processes import until  # type: ignore[import-not-found]

from silodp.engines.transport import Transport

SMALL, LARGE = 1000, 31_000_000  # bytes


def round_trip(transport: Transport, hospitals: Sequence[str], size: int) -> float:
    """Seconds from the first message sent to the last reply received; each hospital has bytes of its own."""
    messages = {hospital: os.urandom(size) for hospital in hospitals}
    started = time.perf_counter()
    sent = {transport.send(hospital, message): message for hospital, message in messages.items()}
    while sent:
        delivery = transport.receive(120)
        if delivery is None or delivery.content != sent.pop(delivery.ticket):
            raise RuntimeError(f"no reply, or another: {delivery and delivery.problem}")
    return time.perf_counter() - started


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--database", action="store_true", help="the SuperLink's state in SQLite")
    parser.add_argument(
        "--smoke", action="store_true", help="one round of each size, the large one of 1 MB, to one hospital"
    )
    chosen = parser.parse_args(words)
    rounds, large = (1, 10**6) if chosen.smoke else (chosen.rounds, LARGE)
    hospitals = HOSPITALS[:1] if chosen.smoke else HOSPITALS
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), database=chosen.database)
        try:
            stage.start()
            for hospital in hospitals:
                stage.link(hospital)
            transport = stage.transport()
            until(lambda: transport.connected() == set(hospitals), "all hospitals are connected")
            round_trip(transport, hospitals, SMALL)  # warms up connections
            for size in (SMALL, large):
                seconds = [round_trip(transport, hospitals, size) for _ in range(rounds)]
                print(
                    f"{size / 1e6:g} MB to {len(hospitals)} hospitals and back, {rounds} rounds:"
                    f" median {statistics.median(seconds):.2f} s,"
                    f" {min(seconds):.2f} to {max(seconds):.2f} s",
                    flush=True,
                )
            transport.close()
        finally:
            stage.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
