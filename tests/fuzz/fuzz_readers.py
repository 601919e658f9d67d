"""Damages files of every kind and reads them: one line or a correct reading, and nothing else.

    python tests/fuzz/fuzz_readers.py --count 12000 --seed 0

Every mutant is read in a child process with a limit on memory and on time, so that a signal, a hang or an
allocation is caught and reported with the mutant's name, such as `npz:412`, which `--only npz:412` repeats.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from specimens import Specimen, sound, specimens

from silodp.cohorts.catalogue import Unreadable
from silodp.cohorts.sources import limits
from silodp.errors import InputError

SECONDS = 20  # for one mutant
MEMORY = 2**30  # bytes beyond what the parent has; torch and NumPy are loaded there
NUMBERS = 2**20  # limits.NUMBERS while fuzzing: the specimens are small, so what is over it is a bomb
VERBOSE = 0
BATCH = 40  # mutants a child


def outcome(kind: str, specimen: Specimen, number: int, folder: Path) -> str:
    """What reading a mutant comes to: "read", "refused", or what went wrong."""
    sound(specimen, folder)
    if number >= 0:  # -1 is the sound one, which must be read
        rng = random.Random(f"{kind}:{number}")
        name = rng.choice(list(specimen.mutations))
        mutant = rng.choice(specimen.mutations[name])(rng, rng.choice(specimen.files[name]))
        (folder / name).write_bytes(mutant)
    try:
        specimen.read(folder)
    except (InputError, Unreadable) as error:
        text = str(error)
        if "\n" in text or not text.strip():
            return f"not one line: {text!r:.300}"
        if number < 0 or "memory" in text:
            return f"should not be refused: {text:.300}"
        if VERBOSE:
            os.write(VERBOSE, f"{kind}:{number} {text:.200}\n".encode())
        return "refused"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in where if "silodp" in frame.filename][-1:]
        places = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*ours, where[-1]))
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} ({places})"[:300]
    return "read"


def run(kind: str, specimen: Specimen, numbers: list[int], work: Path) -> dict[int, str]:
    """The outcomes of some mutants, each batch in a child of its own; after a signal another takes over."""
    found: dict[int, str] = {}
    while waiting := [number for number in numbers if number not in found][:BATCH]:
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiving)
            _work(kind, specimen, waiting, work, sending)
        os.close(sending)
        with os.fdopen(receiving, encoding="utf-8", errors="replace") as lines:
            told = lines.read().splitlines()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for line in told:
            number, _, text = line.partition(" ")
            found[int(number)] = text
        if len(told) < len(waiting):
            what = (
                "hangs" if -status == signal.SIGALRM else f"ends the process ({signal.Signals(-status).name})"
            )
            found[waiting[len(told)]] = what if status < 0 else f"ends the process ({status})"
    return found


def _work(kind: str, specimen: Specimen, numbers: list[int], work: Path, sending: int) -> None:
    """In the child: tells each outcome as soon as it is known, and never returns."""
    limits.NUMBERS = NUMBERS
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")
    try:
        for number in numbers:
            folder = work / f"{kind}-{number}"
            folder.mkdir(exist_ok=True)
            signal.alarm(SECONDS)
            text = outcome(kind, specimen, number, folder)
            signal.alarm(0)
            os.write(sending, f"{number} {text}\n".encode(errors="backslashreplace"))
            for left in (folder, folder.with_name(f"{folder.name}-out")):
                shutil.rmtree(left, ignore_errors=True)
    finally:
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=12_000, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0, help="number of the first mutant of each kind")
    parser.add_argument("--only", help="a kind, or one mutant such as npz:412")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        known = specimens(work)
        kind, _, number = (asked.only or "").partition(":")
        chosen = {kind: known[kind]} if kind else known
        each = -(-asked.count // len(chosen))
        numbers = [int(number)] if number else [-1, *range(asked.seed, asked.seed + each)]
        failures = total = 0
        for name, specimen in chosen.items():
            started = time.perf_counter()
            found = run(name, specimen, numbers, work)
            counts = Counter(text if text in ("read", "refused") else "FAILED" for text in found.values())
            total += len(found)
            failures += counts["FAILED"]
            print(f"{name}: {dict(counts)}, {time.perf_counter() - started:.0f} s", flush=True)
            for one, text in found.items():
                if text not in ("read", "refused"):
                    print(f"  {name}:{one}: {text}", flush=True)
    print(f"{total} mutants, {failures} failures")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
