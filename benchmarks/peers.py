"""A private round in silodp, in Flower's simulation and in pfl-research, against the same steps in a loop.

Everyone trains the same network on the same images with the same batches, optimizer and learning rate, clips
to 1 and adds noise of 0.5; nobody evaluates. Each is in processes of its own and takes its turn: a round of
each in every turn, as many turns as `--turns`, all of it begun anew `--repeats` times. A ratio is that of a
turn, to the limit, which is the bare loop in as many processes as there are cores, and the table has medians;
CPU seconds, those of all processes in a round, are means.
Set-up is from the start of a program to the end of its first round. Flower takes its turns with the limit
alone, since Ray does not quite rest between rounds.

    python benchmarks/peers.py [--workload tiny|unet] [--repeats 3] [--turns N] [--quiet 0.2] [--smoke]

Flower is silodp's extra `flower`. pfl-research needs an older dp-accounting, hence an environment of its own:

    python3 -m venv .venv/pfl && .venv/pfl/bin/pip install -c constraints.txt torch 'pfl[pytorch]==0.6.0'

or wherever `--pfl PYTHON` says that it is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from silodp.bench.bare import try_formats
from silodp.bench.comparison import cores, on_cpu
from silodp.bench.turns import Program, Row, shape_name, take_turns
from silodp.bench.workloads import SMOKE, TINY, UNET, Workload
from silodp.engines.flower.simulation import _environment
from silodp.tables import markdown_table

HERE = Path(__file__).parent
PFL = HERE.parent / ".venv/pfl/bin/python"
INSTALL = {
    "flower": "pip install -c constraints.txt -e '.[flower]'",
    "pfl": "python3 -m venv .venv/pfl && "
    ".venv/pfl/bin/pip install -c constraints.txt torch 'pfl[pytorch]==0.6.0'",
}
TURNS = {"tiny": 10, "unet": 3}


def flower(workload: Workload, channels_last: bool, folder: Path) -> Program:
    """In Flower's simulation, with an actor a core."""
    given = {
        "workload": workload.to_dict(), "channels_last": channels_last, "actors": cores(),
        "folder": str(folder / "ray"),
    }  # fmt: skip
    command = [sys.executable, "-c", "import with_flower; with_flower.main()", json.dumps(given)]
    own = _environment(folder)
    path = os.pathsep.join([str(HERE / "programs"), own["PYTHONPATH"]])  # actors import it as well
    return Program(f"Flower's simulation, {cores()} actors", [command], own | {"PYTHONPATH": path})


def pfl(python: str, workload: Workload, channels_last: bool) -> list[Program]:
    """In pfl-research: one process with one thread and with all, and a process a core."""
    found = []
    for processes, threads in dict.fromkeys([(1, 1), (1, cores()), (cores(), 1)]):
        given = {"workload": workload.to_dict(), "channels_last": channels_last, "threads": threads}
        command = [python, str(HERE / "programs/with_pfl.py"), json.dumps(given)]
        own = {"PYTHONPATH": str(HERE.parent / "src"), "OMP_NUM_THREADS": str(threads)}
        commands = [command]
        if processes > 1:
            own["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{_free_port()}" for _ in range(processes))
            commands = [["env", f"PFL_WORKER_RANK={rank}", *command] for rank in range(processes)]
        found.append(Program(f"pfl-research, {shape_name(processes, threads)}", commands, own))
    return found


def compare(
    workload: Workload, turns: int, quiet: float, without: Sequence[str], python: str, smoke: bool
) -> list[Row]:
    """One start of everybody."""
    channels_last, _ = try_formats(workload)
    programs, _ = on_cpu(workload, channels_last, quick=smoke)
    if smoke:
        return take_turns(programs, turns, together=True)
    if "pfl" not in without:
        programs += pfl(python, workload, channels_last)
    rows = take_turns(programs, turns, quiet=quiet)
    if "flower" not in without:
        with tempfile.TemporaryDirectory(prefix="peers-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            limit, _ = on_cpu(workload, channels_last, quick=False)
            both = [limit[0], flower(workload, channels_last, Path(folder))]
            rows += take_turns(both, turns, quiet=quiet)[1:]
    return rows


def show(workload: Workload, rows: Sequence[Row]) -> None:
    others = [cores for row in rows for cores in row.others]
    print(
        f"\n{workload.title}; {workload.steps} steps; {len(rows[0].seconds)} turns, in which other programs "
        f"used {min(others):.1f} to {max(others):.1f} cores"
    )
    header = ["who", "over the limit", "from … to", "seconds a round", "CPU seconds", "set-up", "peak, MiB"]
    lines = [
        [
            row.name, f"{row.ratio:.2f}", f"{min(row.ratios):.2f} … {max(row.ratios):.2f}",
            f"{row.median:.3f}", f"{row.mean_work:.2f}", f"{row.setup:.1f}", f"{row.memory / 2**20:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    print(markdown_table(header, lines))
    best = {
        kind: min((row for row in rows if row.name.startswith(kind)), key=lambda row: row.ratio)
        for kind in ("bare loop, 1", "silodp", "pfl", "Flower")
        if any(row.name.startswith(kind) for row in rows)
    }
    ours = best["silodp"]
    print(f"silodp's best over the limit: {ours.ratio:.2f} ({ours.name}); set-up {ours.setup:.1f} s")
    for kind, row in best.items():
        if kind != "silodp":
            print(
                f"{row.name} over silodp's best: {row.ratio / ours.ratio:.2f}; set-up {row.setup:.1f} s, "
                f"{row.setup / ours.setup:.2f} times silodp's"
            )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def _missing(python: str) -> list[str]:
    """Who cannot take part."""
    here = {"flower": all(find_spec(name) for name in ("flwr", "ray")), "pfl": Path(python).exists()}
    return [name for name, is_here in here.items() if not is_here]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=("tiny", "unet"), help="default: both")
    parser.add_argument("--repeats", type=int, default=3, help="how often everyone is started")
    parser.add_argument("--turns", type=int, help=f"of each start; default: {TURNS}")
    parser.add_argument(
        "--quiet", type=float, default=math.inf, metavar="CORES",
        help="a turn in which other programs used more than this is taken again, as far as that goes",
    )  # fmt: skip
    parser.add_argument("--without", action="append", default=[], choices=("flower", "pfl"))
    parser.add_argument("--pfl", default=str(PFL), metavar="PYTHON", help="of pfl's environment")
    parser.add_argument("--smoke", action="store_true", help="smallest size, without Flower and pfl")
    chosen = parser.parse_args(words)
    without, known = list(chosen.without), SMOKE if chosen.smoke else {"tiny": TINY, "unet": UNET}
    for name in _missing(chosen.pfl):
        if name not in without and not chosen.smoke:
            print(f"{name} is not installed and left out; to have it: {INSTALL[name]}")
            without.append(name)
    names = [chosen.workload] if chosen.workload else ["tiny"] if chosen.smoke else list(known)
    for name in names:
        workload, total = known[name], dict[str, Row]()
        for _ in range(1 if chosen.smoke else chosen.repeats):
            turns = 1 if chosen.smoke else chosen.turns or TURNS[name]
            for row in compare(workload, turns, chosen.quiet, without, chosen.pfl, chosen.smoke):
                total[row.name] = total[row.name] + row if row.name in total else row
        show(workload, list(total.values()))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1:])
