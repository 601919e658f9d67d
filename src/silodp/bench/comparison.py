"""What `silodp bench` measures: silodp's rounds against the bare loop on this machine, in about a minute."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from silodp.bench.referee import Contestant, OnProgress, Row, bare, silodp, take_turns
from silodp.bench.workloads import SMOKE, TINY, UNET, UNET_32, Workload

Settings = dict[str, dict[str, Any]]
"""Of experiments, by what they are called in the table."""

SETTINGS: Settings = {
    "as it comes": {},
    "threads = 1": {"threads": 1},
    "threads = 1, a worker a core": {"threads": 1, "workers": 0},
}
"""What silodp is tried with on a CPU: settings of an experiment, and `workers` as `silodp run` takes it."""

SECONDS = 1.0
"""A round of the bare loop on one core is to take no longer; where it does, the workload is made smaller."""

TURNS = {"tiny": 7, "unet": 3, "unet-32": 3}


@dataclass(frozen=True)
class Comparison:
    """One workload on one device.

    Attributes:
        workload: as it was trained, which may be smaller than its name says.
        device: "cpu" or "cuda".
        rows: what was measured, the limit first.
        settings: of the rows that are silodp's, by the rows' names.
    """

    workload: Workload
    device: str
    rows: tuple[Row, ...]
    settings: Settings

    @property
    def best(self) -> Row:
        """silodp's fastest."""
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
    """That this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def bench(
    devices: tuple[str, ...] = ("cpu",), quick: bool = False, on_progress: OnProgress = lambda *_: None
) -> list[Comparison]:
    """Each workload on each device.

    Args:
        devices: "cpu", "cuda".
        quick: the smallest federation and one turn, which says whether it runs and little of how fast.
        on_progress: told of (what, done, of how many).
    """
    from silodp.bench.bare import try_formats

    found = []
    for device in devices:
        for workload in (TINY,) if quick else (TINY, UNET) if device == "cpu" else (TINY, UNET, UNET_32):
            sized = SMOKE[workload.name] if quick else workload
            channels_last, seconds = try_formats(sized, device)
            if device == "cpu":
                sized = fitting(sized, seconds)
                contestants, settings = on_cpu(sized, channels_last, quick)
            else:
                contestants, settings = on_gpu(sized, channels_last)
            told = partial(_tell, on_progress, f"{workload.name} on the {device.upper()}")
            rows = take_turns(contestants, 1 if quick else TURNS[workload.name], told, together=quick)
            found.append(Comparison(sized, device, tuple(rows), settings))
    return found


def _tell(on_progress: OnProgress, of: str, what: str, done: int, total: int) -> None:
    on_progress(f"{of}: {what}", done, total)


def fitting(workload: Workload, seconds_a_step: float, seconds: float = SECONDS) -> Workload:
    """The workload, with fewer intermediaries where a round would take longer than `seconds` on one core."""
    return workload.with_steps(int(seconds / seconds_a_step))


def on_cpu(workload: Workload, channels_last: bool, quick: bool) -> tuple[list[Contestant], Settings]:
    """The limit first: a process a core, as far as there are intermediaries."""
    most = 1 if quick else min(cores(), workload.parts)
    shapes = dict.fromkeys([(most, 1), (1, 1), (1, 1 if quick else cores())])  # some may be the same
    names = list(SETTINGS)[:1] if quick else list(SETTINGS)
    settings = {f"silodp, {name}": SETTINGS[name] for name in names}
    contestants = [bare(workload, *shape, channels_last=channels_last) for shape in shapes]
    return contestants + [silodp(workload, name, each) for name, each in settings.items()], settings


def on_gpu(workload: Workload, channels_last: bool) -> tuple[list[Contestant], Settings]:
    """The limit first: the step as a CUDA graph."""
    captured, eager = (
        bare(workload, 1, 1, device="cuda", channels_last=channels_last, captured=captured)
        for captured in (True, False)
    )
    captured.name, eager.name = "bare loop, captured step", "bare loop, eager"
    name = "silodp, as it comes"
    return [captured, eager, silodp(workload, name, device="cuda")], {name: {}}
