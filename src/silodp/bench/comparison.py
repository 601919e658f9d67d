"""The measurement of `silodp bench`: silodp's rounds against a bare loop on this machine, in about a
minute."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from silodp.bench.bare import try_formats
from silodp.bench.turns import OnProgress, Program, Row, bare, silodp, take_turns
from silodp.bench.workloads import SMOKE, TINY, UNET, UNET_32, Workload

Settings = dict[str, dict[str, Any]]
"""Settings of experiments, by name in the table."""

SETTINGS: Settings = {
    "as it comes": {},
    "threads = 1": {"threads": 1},
    "threads = 1, a worker a core": {"threads": 1, "workers": 0},
}
"""Tried on a CPU: settings of an experiment, and `workers` as for `silodp run`."""

SECONDS = 1.0
"""Upper bound of a round of the bare loop on one core; a workload that takes longer is made smaller."""

TURNS = {"tiny": 7, "unet": 3, "unet-32": 3}


@dataclass(frozen=True)
class Comparison:
    """One workload on one device.

    Attributes:
        workload: as it was trained, perhaps smaller than the one of this name.
        device: "cpu" or "cuda".
        rows: measurements, the limit first.
        settings: of silodp's rows, by name.
    """

    workload: Workload
    device: str
    rows: tuple[Row, ...]
    settings: Settings

    @property
    def best(self) -> Row:
        """The fastest row of silodp."""
        return min((row for row in self.rows if row.name in self.settings), key=lambda row: row.ratio)

    def images_a_second(self, row: Row) -> float:
        return self.workload.images_a_round / row.median

    def to_dict(self) -> dict[str, Any]:
        """For JSON; seconds, bytes and ratios are medians or peaks."""
        return {
            "workload": self.workload.to_dict(),
            "device": self.device,
            "best": self.settings[self.best.name],
            "rows": [
                {
                    "name": row.name,
                    "ratio": row.ratio,
                    "seconds": row.median,
                    "cpu_seconds": row.mean_work,
                    "images_per_second": self.images_a_second(row),
                    "setup_seconds": row.setup,
                    "memory_bytes": row.memory,
                    "cores_of_others": max(row.others),
                    "steps": row.steps,
                }
                for row in self.rows
            ],
        }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def bench(
    devices: tuple[str, ...] = ("cpu",), quick: bool = False, on_progress: OnProgress = lambda *_: None
) -> list[Comparison]:
    """Each workload on each device.

    Args:
        devices: "cpu", "cuda".
        quick: the smallest federation and one turn, which shows that it runs, not how fast.
        on_progress: called with (what, done, total).
    """
    found = []
    for device in devices:
        for workload in (TINY,) if quick else (TINY, UNET) if device == "cpu" else (TINY, UNET, UNET_32):
            sized = SMOKE[workload.name] if quick else workload
            channels_last, seconds = try_formats(sized, device)
            if device == "cpu":
                sized = sized.with_steps(int(SECONDS / seconds))
                programs, settings = on_cpu(sized, channels_last, quick)
            else:
                programs, settings = on_gpu(sized, channels_last)
            report = partial(_report, on_progress, f"{workload.name} on the {device.upper()}")
            rows = take_turns(programs, 1 if quick else TURNS[workload.name], report, together=quick)
            found.append(Comparison(sized, device, tuple(rows), settings))
    return found


def _report(on_progress: OnProgress, where: str, what: str, done: int, total: int) -> None:
    on_progress(f"{where}: {what}", done, total)


def on_cpu(workload: Workload, channels_last: bool, quick: bool) -> tuple[list[Program], Settings]:
    """The programs to compare, the limit first: one process a core, at most one an intermediary."""
    most = 1 if quick else min(cores(), workload.parts)
    shapes = dict.fromkeys([(most, 1), (1, 1), (1, 1 if quick else cores())])  # some may be the same
    names = list(SETTINGS)[:1] if quick else list(SETTINGS)
    settings = {f"silodp, {name}": SETTINGS[name] for name in names}
    programs = [bare(workload, *shape, channels_last=channels_last) for shape in shapes]
    return programs + [silodp(workload, name, each) for name, each in settings.items()], settings


def on_gpu(workload: Workload, channels_last: bool) -> tuple[list[Program], Settings]:
    """The programs to compare, the limit first: the step as a CUDA graph."""
    captured, eager = (
        bare(workload, 1, 1, device="cuda", channels_last=channels_last, captured=captured)
        for captured in (True, False)
    )
    captured.name, eager.name = "bare loop, captured step", "bare loop, eager"
    name = "silodp, as it comes"
    return [captured, eager, silodp(workload, name, device="cuda")], {name: {}}
