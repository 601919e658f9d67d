"""SIGKILL at random moments: no release is lost, none is counted twice, every resume is exact.

    python benchmarks/kills.py [--kills 200] [--command-line 20] [--seed 0]

Small runs of all kinds are killed again and again, from their first file to their last, also while they are
being resumed, and then brought to their end. A kill's moment is drawn evenly over the time that a whole run
takes. Most victims are forked from this process, which has imported everything; some are the command itself.
With a seed, a run must end with the very files of one that was never disturbed. With the system's entropy a
round may be released again; the ledger must then hold all that was ever used, by killed processes, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from silodp import Experiment, InputError, resume, train
from silodp.bench.workloads import Workload
from silodp.privacy.ledger import Ledger, read_ledger
from silodp.runs.folder import RunFolder
from silodp.runs.statement import read_statement

BASE: dict[str, Any] = {
    "rounds": 5,
    "threads": 1,
    "model": {"features": 2, "levels": 1},
    "local": {"learning_rate": 0.01, "batch_size": 4},
    "intermediaries": {"rule": "fixed", "count": 2},
    "clipping": {"bound": 0.5},
}

KINDS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedadam, adaptive v": {"server.optimizer": "fedadam", "intermediaries.rule": "adaptive"},
    "fednova, poisson": {
        "server.optimizer": "fednova", "participation.rule": "poisson", "participation.rate": 0.6,
    },
    "dp2-rmsprop": {"server.optimizer": "dp2-rmsprop", "server.interval": 1},
    "fraction, a checkpoint every 3": {
        "participation.rule": "fraction", "participation.rate": 0.67, "checkpoint_every": 3,
    },
    "median, adaptive v, every 3": {
        "clipping.rule": "median", "intermediaries.rule": "adaptive", "checkpoint_every": 3,
    },
    "sample level": {
        "privacy.level": "sample", "intermediaries.count": 1, "clipping.rule": "none",
        "privacy.noise_multiplier": 1.0,
    },
    "budget": {"rounds": 9, "budget.epsilon": 60.0},
    "budget, every 3": {"rounds": 9, "budget.epsilon": 60.0, "checkpoint_every": 3},
    "system": {"privacy.entropy": "system"},
    "system, poisson, fedadam, every 3": {
        "privacy.entropy": "system", "server.optimizer": "fedadam", "checkpoint_every": 3,
        "participation.rule": "poisson", "participation.rate": 0.6,
    },
    "system, sample level": {
        "privacy.entropy": "system", "privacy.level": "sample", "intermediaries.count": 1,
        "clipping.rule": "none", "privacy.noise_multiplier": 1.0,
    },
    "system, budget, every 3": {
        "privacy.entropy": "system", "rounds": 9, "budget.epsilon": 60.0, "checkpoint_every": 3,
    },
}  # fmt: skip

BLOBS = Workload("blobs", "unet", width=2, side=16, hospitals=3, intermediaries=1, images=12)
"""What victims train on that are forked: noisy images with a bright square, and its mask."""

COMMAND_LINE = {"cohort.kind": "synthetic-mri", "cohort.slices": 40, "cohort.image_size": 32}
SAME = ("ledger.jsonl", "model.safetensors", "model-best.safetensors", "experiment.toml")


@dataclass
class Tally:
    """What a run of this script found."""

    kills: int = 0
    before_the_folder: int = 0
    in_resume: int = 0
    after_the_end: int = 0  # the victim was quicker than its killer
    runs: int = 0
    redone: int = 0
    faults: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--command-line", type=int, default=20, help="of these, kills of the command silodp")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="silodp-kills-") as folder:
        tally = kill_many(asked.kills, asked.command_line, asked.seed, Path(folder), print)
    for fault in tally.faults:
        print(f"FAULT {fault}")
    print(
        f"{tally.kills} kills ({tally.before_the_folder} before there was a run, {tally.in_resume} during "
        f"a resume; {tally.after_the_end} more came too late) in {tally.runs} runs; {tally.redone} rounds "
        f"released again and counted; {len(tally.faults)} faults"
    )
    sys.exit(bool(tally.faults))


def kill_many(kills: int, command_line: int, seed: int, folder: Path, say: Callable[[str], object]) -> Tally:
    """Runs of each kind in turn, each killed one to four times, until so many kills are done."""
    torch.set_num_threads(1)
    rng, tally = random.Random(seed), Tally()
    undisturbed: dict[tuple[str, bool], tuple[Path, float]] = {}
    names = list(KINDS)
    while tally.kills < kills:
        through_shell = tally.kills >= kills - command_line
        name = names[tally.runs % len(names)]
        kind = Kind(name, through_shell, folder / f"run-{tally.runs}", folder / f"released-{tally.runs}")
        if (name, through_shell) not in undisturbed:
            undisturbed[name, through_shell] = _undisturbed(name, through_shell, folder)
        reference, seconds = undisturbed[name, through_shell]
        tally.runs += 1
        wanted = min(kills - tally.kills, rng.randint(1, 4))
        done = kind.kill_and_finish(wanted, seconds, rng, tally)
        faults = kind.faults(reference, tally) if done else ["does not come to its end"]
        tally.faults += [f"{name} ({kind.folder.name}): {fault}" for fault in faults]
        how = " (command line)" if through_shell else ""
        say(f"{tally.kills:4d} kills  {name}{how}, {seconds:.1f} s undisturbed: {faults or 'in order'}")
    return tally


def _undisturbed(name: str, through_shell: bool, folder: Path) -> tuple[Path, float]:
    """The folder of a run that nobody kills, and the seconds that one takes."""
    if not through_shell:  # all that is imported and cached in this process need not be by the victims
        train(
            Kind(name, False, folder, folder).experiment, cohort=BLOBS.cohort(), out=folder / f"warm-{name}"
        )
    whole = Kind(name, through_shell, folder / f"whole-{name}-{through_shell}", folder / f"whole-{name}")
    started = time.perf_counter()
    if not whole.wait(whole.start()):
        raise SystemExit(f"{name} does not run undisturbed: {whole.folder.with_suffix('.log').read_text()}")
    return whole.folder, time.perf_counter() - started


@dataclass
class Kind:
    """One run that is killed and resumed."""

    name: str
    through_shell: bool
    folder: Path
    released: Path  # a list of every release that a process has got back from its ledger and could use

    @property
    def experiment(self) -> Experiment:
        changes = KINDS[self.name] | (COMMAND_LINE if self.through_shell else {})
        return Experiment.build(BASE, changes)

    def start(self) -> int:
        """A process that starts the run or takes it up; its id."""
        going_on = (self.folder / "experiment.toml").exists()
        if self.through_shell:
            toml = self.folder.with_suffix(".toml")
            toml.write_text(self.experiment.to_toml())
            words = ["resume", self.folder] if going_on else ["run", toml, "--out", self.folder]
            code = "import sys; from silodp.cli import main; sys.argv[0] = 'silodp'; main()"
            with self.folder.with_suffix(".log").open("a") as log:
                return subprocess.Popen(
                    [sys.executable, "-c", code, *map(str, words), "--device", "cpu"],
                    stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
                ).pid  # fmt: skip
        process = os.fork()
        if process == 0:
            self._be_the_victim(going_on)
        return process

    def _be_the_victim(self, going_on: bool) -> None:
        code = 1
        try:
            gc.disable()
            _list_releases(self.released)
            how: dict[str, Any] = {"cohort": BLOBS.cohort(), "device": "cpu"}
            if going_on:
                resume(self.folder, **how)
            else:
                train(self.experiment, out=self.folder, **how)
            code = 0
        except BaseException as error:
            with self.folder.with_suffix(".log").open("a") as log:
                log.write(f"{error!r}\n")
        finally:
            os._exit(code)

    def wait(self, process: int) -> bool:
        """Whether the process has come to a good end."""
        _, status = os.waitpid(process, 0)
        return os.waitstatus_to_exitcode(status) == 0

    def kill_and_finish(self, kills: int, seconds: float, rng: random.Random, tally: Tally) -> bool:
        """So many kills, at moments drawn evenly over `seconds`, then to the end; whether it came there."""
        while kills:
            going_on = (self.folder / "experiment.toml").exists()
            process = self.start()
            time.sleep(rng.uniform(0, seconds))
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            if os.WIFSIGNALED(status):
                kills -= 1
                tally.kills += 1
                tally.in_resume += going_on
                tally.before_the_folder += not (self.folder / "experiment.toml").exists()
            elif os.waitstatus_to_exitcode(status) == 0:
                tally.after_the_end += 1
                break  # its life is over; the other kills are another run's
            else:
                return False
        return self.wait(self.start())

    def faults(self, reference: Path, tally: Tally) -> list[str]:
        """What is not as it must be in the run's folder."""
        try:
            statement = read_statement(self.folder)
        except InputError as error:
            return [str(error)]
        found = list(statement.problems)
        events = read_ledger(self.folder / "ledger.jsonl").events
        updates = Counter(event.round for event in events if event.released == "model update")
        summary = RunFolder(self.folder).summary()
        planned = summary["rounds"] if summary else 0
        tally.redone += sum(updates.values()) - len(updates)
        if sorted(updates) != list(range(1, max(updates) + 1)) or max(updates) < planned:
            found.append(f"rounds in the ledger: {sorted(updates)}, in the summary: {planned}")
        if self.released.exists():
            used = {tuple(json.loads(line)) for line in self.released.read_text().splitlines()}
            if lost := used - {(event.round, event.released, event.digest) for event in events}:
                found.append(f"{len(lost)} releases were used and are not in the ledger")
        if (limit := self.experiment.budget) is not None:
            assert statement.budget_spent is not None
            if statement.budget_spent > limit.epsilon:
                found.append(f"spent {statement.budget_spent} of a budget of {limit.epsilon}")
        if self.experiment.privacy.reproducible:
            if set(updates.values()) != {1}:
                found.append(f"releases of a round: {dict(updates)}")
            found += [
                f"{name} is not that of the undisturbed run"
                for name in SAME
                if (self.folder / name).read_bytes() != (reference / name).read_bytes()
            ]
            if _without_seconds(self.folder) != _without_seconds(reference):
                found.append("metrics.jsonl is not that of the undisturbed run")
        return found


def _list_releases(path: Path) -> None:
    """Makes this process write down every release that its ledger has let through."""
    record = Ledger.record

    def recorded(self: Ledger, events: Any) -> None:
        record(self, events)
        with path.open("a") as file:
            for event in events:
                file.write(json.dumps([event.round, event.released, event.digest]) + "\n")

    Ledger.record = recorded  # type: ignore[method-assign]


def _without_seconds(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]


if __name__ == "__main__":
    main()
