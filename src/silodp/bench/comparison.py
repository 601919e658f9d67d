"""What `silodp bench` measures: silodp's rounds against the bare loop on this machine, in about a minute."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from silodp.bench.referee import Contestant, OnProgress, Row, bare, silodp, take_turns
from silodp.bench.workloads import SMOKE, TINY, UNET, UNET_32, Workload

SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "threads = 1": {"threads": 1},
}
"""What silodp is tried with on a CPU: settings of an experiment, by what they are called in the table."""

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
    settings: Mapping[str, dict[str, Any]]

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
                    "images_per_second": self.images_a_second(row),
                    "setup_seconds": row.setup,
                    "memory_bytes": row.memory,
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
    found = []
    for device in devices:
        for workload in (TINY,) if quick else (TINY, UNET) if device == "cpu" else (TINY, UNET, UNET_32):
            sized = SMOKE[workload.name] if quick else fitting(workload) if device == "cpu" else workload
            contestants, settings = _of_cpu(sized, quick) if device == "cpu" else _of_gpu(sized)
            told = partial(_tell, on_progress, f"{workload.name} on the {device.upper()}")
            rows = take_turns(contestants, 1 if quick else TURNS[workload.name], told, together=quick)
            found.append(Comparison(sized, device, tuple(rows), settings))
    return found


def _tell(on_progress: OnProgress, of: str, what: str, done: int, total: int) -> None:
    on_progress(f"{of}: {what}", done, total)


def fitting(workload: Workload, seconds: float = SECONDS) -> Workload:
    """The workload, with fewer intermediaries where a round would take longer than `seconds` on one core."""
    from silodp.bench.bare import seconds_a_step

    return workload.with_steps(int(seconds / seconds_a_step(workload)))


def _of_cpu(workload: Workload, quick: bool) -> tuple[list[Contestant], dict[str, dict[str, Any]]]:
    """The limit first: a process a core, as far as there are intermediaries."""
    most = 1 if quick else min(cores(), workload.parts)
    shapes = dict.fromkeys([(most, 1), (1, 1), (1, 1 if quick else cores())])  # some may be the same
    names = list(SETTINGS)[:1] if quick else list(SETTINGS)
    settings = {f"silodp, {name}": SETTINGS[name] for name in names}
    contestants = [bare(workload, *shape) for shape in shapes]
    return contestants + [silodp(workload, name, each) for name, each in settings.items()], settings


def _of_gpu(workload: Workload) -> tuple[list[Contestant], dict[str, dict[str, Any]]]:
    """The limit first: the step as a CUDA graph."""
    captured = bare(workload, 1, 1, device="cuda", captured=True)
    captured.name = "bare loop, captured step"
    eager = bare(workload, 1, 1, device="cuda")
    eager.name = "bare loop, eager"
    settings: dict[str, dict[str, Any]] = {"silodp, as it comes": {}}
    return [captured, eager, silodp(workload, "silodp, as it comes", device="cuda")], settings
