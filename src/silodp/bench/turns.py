"""Measures programs in processes of their own with one clock: they run rounds in turn."""

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

EXIT_SECONDS = 10.0  # that a process has before it is killed
MEMORY_INTERVAL = 0.5  # seconds between measurements of memory
TRIES = 5


@dataclass
class Program:
    """A program to measure: processes that train a round together, which is over when all have finished.

    Attributes:
        name: for the table.
        commands: command lines of its processes.
        environment: in addition to that of this process.
        steps: local steps of a round of all processes, as they report.
        memory: peak bytes of all processes without mapped files, such as PyTorch's libraries; 0 if unknown.
    """

    name: str
    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    memory: int = 0
    # Each with the file that its standard error goes to.
    _processes: dict[subprocess.Popen[str], IO[str]] = field(default_factory=dict, init=False)
    _started: float = field(default=0.0, init=False)

    @property
    def sessions(self) -> list[int]:
        """Session ids of its processes, which include their children."""
        return [process.pid for process in self._processes]

    def launch(self) -> None:
        """Starts its processes; `ready` waits for them."""
        self._started = time.perf_counter()
        for command in self.commands:
            errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | self.environment, start_new_session=True,
            )  # fmt: skip
            self._processes[process] = errors

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
        """Ends its processes and their children."""
        for process in self._processes:
            with suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
        for process, errors in self._processes.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            errors.close()
        self._processes.clear()

    def _answered(self) -> float:
        """Waits for all processes, while memory is measured; the time at which the last one finished."""
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,), daemon=True)
        watch.start()
        try:
            steps = [self._answer(process, errors) for process, errors in self._processes.items()]
            moment, self.steps = time.perf_counter(), sum(steps)
        finally:
            over.set()
            watch.join()
        return moment

    def _answer(self, process: subprocess.Popen[str], errors: IO[str]) -> int:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(FINISHED):
                return int(line.removeprefix(FINISHED))
        errors.seek(0)
        lines = [line for line in errors.read().splitlines() if line.strip()]
        raise RuntimeError(f"{self.name}: a process ended ({lines[-1] if lines else 'without any output'})")

    def _watch(self, over: threading.Event) -> None:
        """Measures memory at intervals and once at the end."""
        while True:
            last = over.wait(MEMORY_INTERVAL)
            self.memory = max(self.memory, sum(map(memory, self.sessions)))
            if last:
                return


def bare(workload: Workload, processes: int, threads: int, **options: Any) -> Program:
    """The bare loop, divided evenly between processes."""
    given = {"kind": "bare", "workload": workload.to_dict(), "threads": threads, **options}
    commands = [_worker(given | {"part": part, "parts": processes}) for part in range(processes)]
    name = f"bare loop, {shape_name(processes, threads)}"
    return Program(name, commands, {"OMP_NUM_THREADS": str(threads)})


def silodp(
    workload: Workload, name: str, settings: Mapping[str, Any] | None = None, device: str = "cpu"
) -> Program:
    """silodp with some settings of an experiment."""
    given = {"kind": "silodp", "workload": workload.to_dict(), "device": device, "settings": settings or {}}
    return Program(name, [_worker(given)])


def _worker(given: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "silodp.bench.worker", json.dumps(given)]


def shape_name(processes: int, threads: int) -> str:
    """Such as "2 processes of 1 thread"."""
    return f"{processes} process{'es' * (processes > 1)} of {threads} thread{'s' * (threads > 1)}"


@dataclass(frozen=True)
class Row:
    """The measurements of one program.

    Attributes:
        name: of the program.
        setups: seconds from start to end of the first round, for every start.
        seconds: of the rounds after the first.
        ratios: of these to the rounds of the limit in the same turns.
        work: CPU seconds of each of these rounds; 0 if unknown.
        others: average cores that other programs used in each turn.
        steps: local steps of a round.
        memory: bytes, see `Program`.
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
        """Median seconds of a round."""
        return statistics.median(self.seconds)

    @property
    def mean_work(self) -> float:
        """Mean CPU seconds of a round."""
        return statistics.mean(self.work)

    @property
    def ratio(self) -> float:
        """Median ratio to the limit."""
        return statistics.median(self.ratios)

    def __add__(self, other: Row) -> Row:
        """Adds the measurements of another start of the same program."""
        return Row(
            self.name, self.setups + other.setups, self.seconds + other.seconds, self.ratios + other.ratios,
            self.work + other.work, self.others + other.others, self.steps, max(self.memory, other.memory),
        )  # fmt: skip


def take_turns(
    programs: Sequence[Program],
    turns: int,
    on_progress: OnProgress = lambda *_: None,
    together: bool = False,
    quiet: float = math.inf,
) -> list[Row]:
    """Starts the programs, then lets each run one round in every turn; the first one is the limit.

    All stay alive and all but one wait, so that a busy moment of the machine slows all programs of a turn and
    changes its ratios less.

    Args:
        on_progress: called with (what, done, total).
        together: start all at once, which is faster but does not measure set-up.
        quiet: turns in which other programs used more cores than this are repeated, up to `TRIES` times as
            many turns in all; then the quietest ones count.
    """
    setups: list[float] = []
    found: list[tuple[float, list[tuple[float, float]]]] = []  # cores of others; seconds and work of each
    with ExitStack() as stack:
        for one in programs:
            stack.callback(one.stop)
        if together:
            for one in programs:
                one.launch()
        for number, one in enumerate(programs, start=1):
            if not together:
                one.launch()
            setups.append(one.ready())
            on_progress("starts", number, len(programs))
        sessions = {session for one in programs for session in one.sessions}
        while sum(others <= quiet for others, _ in found) < turns and len(found) < TRIES * turns:
            before = Moment.now(sessions)
            measured = [_round(one) for one in programs]
            found.append((before.cores_of_others(Moment.now(sessions)), measured))
            on_progress("turns", min(turns, sum(others <= quiet for others, _ in found)), turns)
    counting = sorted(found, key=lambda turn: turn[0])[:turns]
    rows = []
    for number, one in enumerate(programs):
        seconds, work = zip(*(measured[number] for _, measured in counting), strict=True)
        ratios = tuple(measured[number][0] / measured[0][0] for _, measured in counting)
        others = tuple(others for others, _ in counting)
        rows.append(Row(one.name, (setups[number],), seconds, ratios, work, others, one.steps, one.memory))
    return rows


def _round(program: Program) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one round."""
    before = cpu_seconds(program.sessions)
    seconds = program.round()
    return seconds, cpu_seconds(program.sessions) - before
