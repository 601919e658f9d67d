"""`silodp bench`: how close silodp comes to a bare training loop on this machine."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silodp.cli.options import Json
from silodp.cli.terminal import console, print_json, say

if TYPE_CHECKING:
    from silodp.bench.comparison import Comparison

HEADINGS = "over the\nlimit", "seconds\na round", "images\na second", "set-up,\nseconds", "memory,\nMiB"

BUSY = 0.3  # cores that other programs use


def bench(
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: both where there is a GPU.")] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="The smallest federation: shows that it runs, not how fast.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time silodp's rounds against the same steps in a bare PyTorch loop; takes about a minute."""
    from silodp.bench.comparison import bench as compare
    from silodp.cli.display import stages
    from silodp.runs.build import device_named

    place = device_named(device).type
    devices = ("cpu", "cuda") if device == "auto" and place == "cuda" else (place,)
    machine = _machine()
    if not as_json:
        say(
            f"{machine['processor']}, {machine['cores']} cores, PyTorch {machine['torch']}"
            + (f", {machine['gpu']}" if machine["gpu"] else "")
        )
    with stages() as on_progress:
        found = compare(devices, quick, on_progress)
    if as_json:
        print_json({"machine": machine, "comparisons": [one.to_dict() for one in found]})
        return
    for one in found:
        _show(one)
    others = max(cores for one in found for row in one.rows for cores in row.others)
    if others > BUSY:
        say(
            f"other programs used up to {others:.1f} cores meanwhile, which slows silodp's threads "
            "and processes down; run it again while nothing else runs"
        )


def _machine() -> dict[str, Any]:
    import torch

    from silodp.bench.comparison import cores

    return {
        "processor": platform.processor() or platform.machine(),
        "cores": cores(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _show(comparison: Comparison) -> None:
    from silodp.cli.tables import make_table, numbers, print_table

    workload, best = comparison.workload, comparison.best
    table = make_table(
        f"{workload.title}; on the {'GPU' if comparison.device == 'cuda' else 'CPU'}, {workload.steps} steps",
        "program", *numbers(*HEADINGS),
        caption="Medians; every turn has a round of each. The limit is the first line. Set-up: from the "
        "start of the process to the end of round one.",
    )  # fmt: skip
    for row in comparison.rows:
        table.add_row(
            row.name,
            f"{row.ratio:.2f}",
            f"{row.median:.3f}",
            f"{comparison.images_a_second(row):,.0f}",
            f"{row.setup:.1f}",
            f"{row.memory / 2**20:,.0f}" if row.memory else "–",
        )
    print_table(console(), table, optional=(HEADINGS[4], HEADINGS[1]))
    settings = comparison.settings[best.name]
    words = [
        f"--workers {value}" if key == "workers" else f"--set {key}={value}"
        for key, value in settings.items()
    ]
    say(f"best here: {best.name}, {best.ratio:.2f} times the limit" + "".join(f"; {word}" for word in words))
