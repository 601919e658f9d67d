"""Memory and CPU time of processes from Linux's /proc; zeros where it does not exist."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PROC = Path("/proc")


def memory(session: int) -> int:
    """Bytes of all processes of a session: shared pages count once, mapped files not at all."""
    total = 0
    for place, _ in _of_sessions({session}):
        with suppress(OSError, ValueError):
            for line in (place / "smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += 1024 * int(line.split()[1])
    return total


def cpu_seconds(sessions: Collection[int]) -> float:
    """CPU seconds of all processes of these sessions, in the hundredths that Linux counts."""
    # Of a process: its own time and that of its children which ended, each as user and system.
    ticks = sum(sum(map(int, stat[11:15])) for _, stat in _of_sessions(sessions))
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Moment:
    """Seconds so far: wall clock, busy time of all processors, and CPU time of our own processes."""

    clock: float
    work: float
    own: float

    @classmethod
    def now(cls, sessions: Collection[int]) -> Self:
        ticks = os.sysconf("SC_CLK_TCK")
        try:
            # user, nice, system, idle, iowait, irq, softirq, steal (which counts as busy)
            fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
            work = sum(map(int, fields)) - int(fields[3]) - int(fields[4])
        except (OSError, ValueError, IndexError):
            return cls(time.perf_counter(), 0.0, 0.0)
        return cls(time.perf_counter(), work / ticks, cpu_seconds(sessions) + time.process_time())

    def cores_of_others(self, later: Moment) -> float:
        """Cores that other programs used on average until `later`."""
        work = (later.work - self.work) - (later.own - self.own)
        return max(0.0, work / (later.clock - self.clock))


def _of_sessions(sessions: Collection[int]) -> Iterator[tuple[Path, list[str]]]:
    """Processes of these sessions: folder in /proc, and `stat` from the third field on."""
    for place in _PROC.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # The name before the last bracket may hold spaces; after it: state, parent, group, session.
            stat = (place / "stat").read_text().rpartition(")")[2].split()
            if int(stat[3]) in sessions:
                yield place, stat
