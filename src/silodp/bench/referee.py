"""Contestants in processes of their own, and one clock for all: they are asked for rounds in turn."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from silodp.bench.processes import Moment, cpu_seconds, memory
from silodp.bench.worker import FINISHED
from silodp.bench.workloads import Workload

OnProgress = Callable[[str, int, int], None]

GOODBYE = 10.0  # seconds for a process to end by itself
EVERY = 0.5  # seconds between two looks at the memory
TRIES = 5


@dataclass
class Contestant:
    """Processes that train the same round together; each is asked, and the round is over when all say so.

    Attributes:
        name: for the table.
        commands: what starts each of its processes.
        environment: beside that of this process.
        steps: local steps of a round, over all processes, as they say.
        memory: bytes at the peak that was seen, over all processes: without files that are mapped, such as
            PyTorch's libraries; 0 where the system does not tell.
    """

    name: str
    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    memory: int = 0

    def __post_init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._complaints: list[IO[str]] = []
        self._started = 0.0

    @property
    def sessions(self) -> list[int]:
        """One of each of its processes, with all that these started."""
        return [process.pid for process in self._processes]

    def launch(self) -> None:
        """Starts its processes; `ready` waits for them."""
        self._started = time.perf_counter()
        for command in self.commands:
            self._complaints.append(tempfile.TemporaryFile("w+", errors="replace"))  # noqa: SIM115
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints[-1],
                text=True, env=os.environ | self.environment, start_new_session=True,
            )  # fmt: skip
            self._processes.append(process)

    def ready(self) -> float:
        """Seconds from the start of the first process to the end of the first round."""
        return self._answered() - self._started

    def round(self) -> float:
        """Seconds of one round."""
        started = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return self._answered() - started

    def stop(self) -> None:
        """Ends its processes, and those that they started."""
        for process in self._processes:
            with suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GOODBYE)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for complaints in self._complaints:
            complaints.close()
        self._processes, self._complaints = [], []

    def _answered(self) -> float:
        """When every process has answered; the memory is looked at meanwhile."""
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,), daemon=True)
        watch.start()
        try:
            steps = [
                self._answer(process, complaints)
                for process, complaints in zip(self._processes, self._complaints, strict=True)
            ]
            moment, self.steps = time.perf_counter(), sum(steps)
        finally:
            over.set()
            watch.join()
        return moment

    def _answer(self, process: subprocess.Popen[str], complaints: IO[str]) -> int:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(FINISHED):
                return int(line.removeprefix(FINISHED))
        complaints.seek(0)
        said = [line for line in complaints.read().splitlines() if line.strip()]
        raise RuntimeError(f"{self.name}: a process ended ({said[-1] if said else 'it said nothing'})")

    def _watch(self, over: threading.Event) -> None:
        """Now and then, and once at the end."""
        while True:
            last = over.wait(EVERY)
            self.memory = max(self.memory, sum(map(memory, self.sessions)))
            if last:
                return


def bare(workload: Workload, processes: int, threads: int, **options: Any) -> Contestant:
    """The bare loop, its work divided evenly over some processes."""
    given = {"kind": "bare", "workload": workload.to_dict(), "threads": threads, **options}
    commands = [_worker(given | {"part": part, "parts": processes}) for part in range(processes)]
    name = f"bare loop, {shape_name(processes, threads)}"
    return Contestant(name, commands, {"OMP_NUM_THREADS": str(threads)})


def silodp(
    workload: Workload, name: str, settings: Mapping[str, Any] | None = None, device: str = "cpu"
) -> Contestant:
    """silodp with some settings of an experiment."""
    given = {"kind": "silodp", "workload": workload.to_dict(), "device": device, "settings": settings or {}}
    return Contestant(name, [_worker(given)])


def _worker(given: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "silodp.bench.worker", json.dumps(given)]


def shape_name(processes: int, threads: int) -> str:
    """Such as "2 processes of 1 thread"."""
    return f"{processes} process{'es' * (processes > 1)} of {threads} thread{'s' * (threads > 1)}"


@dataclass(frozen=True)
class Row:
    """What was measured of one contestant.

    Attributes:
        name: of the contestant.
        setups: seconds from its start to the end of its first round, of every start.
        seconds: of its rounds after the first.
        ratios: of these to the limit's rounds of the same turns.
        work: seconds of all processors in each of these rounds; 0 where the system does not tell.
        others: cores that everyone else on the machine used, on average in each turn.
        steps: local steps of a round.
        memory: bytes, see `Contestant`.
    """

    name: str
    setups: tuple[float, ...]
    seconds: tuple[float, ...]
    ratios: tuple[float, ...]
    work: tuple[float, ...]
    others: tuple[float, ...]
    steps: int
    memory: int

    @property
    def setup(self) -> float:
        return statistics.median(self.setups)

    @property
    def median(self) -> float:
        """Seconds a round."""
        return statistics.median(self.seconds)

    @property
    def mean_work(self) -> float:
        """Seconds of all processors a round."""
        return statistics.mean(self.work)

    @property
    def ratio(self) -> float:
        """To the limit."""
        return statistics.median(self.ratios)

    def __add__(self, other: Row) -> Row:
        """The same contestant's, started once more."""
        return Row(
            self.name, self.setups + other.setups, self.seconds + other.seconds, self.ratios + other.ratios,
            self.work + other.work, self.others + other.others, self.steps, max(self.memory, other.memory),
        )  # fmt: skip


def take_turns(
    contestants: Sequence[Contestant],
    turns: int,
    on_progress: OnProgress = lambda *_: None,
    together: bool = False,
    quiet: float = math.inf,
) -> list[Row]:
    """Starts one after the other, then asks each for one round in every turn; the first is the limit.

    All are alive at once, and all but one wait: so a busy moment of the machine falls on neighbours in a turn
    alike, and the ratio of a turn feels it less.

    Args:
        on_progress: told of (what, done, of how many).
        together: start all at once, which is over sooner and says nothing of set-up.
        quiet: a turn in which everyone else used more cores than this does not count, and is taken again, up
            to `TRIES` times as many turns in all; then those with the least of it count.
    """
    setups: list[float] = []
    found: list[tuple[float, list[tuple[float, float]]]] = []  # cores of others; seconds and work of each
    with ExitStack() as stack:
        for one in contestants:
            stack.callback(one.stop)
        if together:
            for one in contestants:
                one.launch()
        for number, one in enumerate(contestants, start=1):
            if not together:
                one.launch()
            setups.append(one.ready())
            on_progress("starts", number, len(contestants))
        sessions = {session for one in contestants for session in one.sessions}
        while sum(others <= quiet for others, _ in found) < turns and len(found) < TRIES * turns:
            before = Moment.now(sessions)
            measured = [_round(one) for one in contestants]
            found.append((before.cores_of_others(Moment.now(sessions)), measured))
            on_progress("turns", min(turns, sum(others <= quiet for others, _ in found)), turns)
    counting = sorted(found, key=lambda turn: turn[0])[:turns]
    rows = []
    for number, one in enumerate(contestants):
        seconds, work = zip(*(measured[number] for _, measured in counting), strict=True)
        ratios = tuple(measured[number][0] / measured[0][0] for _, measured in counting)
        others = tuple(others for others, _ in counting)
        rows.append(Row(one.name, (setups[number],), seconds, ratios, work, others, one.steps, one.memory))
    return rows


def _round(contestant: Contestant) -> tuple[float, float]:
    """Seconds of one round, and of all processors in it."""
    before = cpu_seconds(contestant.sessions)
    seconds = contestant.round()
    return seconds, cpu_seconds(contestant.sessions) - before
