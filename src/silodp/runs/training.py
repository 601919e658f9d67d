"""Trains an experiment into a run folder, or resumes a run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Unpack, cast

from silodp.cohorts.description import in_short
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.federation import State
from silodp.runs.build import Own, build
from silodp.runs.consistency import conflicts, read_run_files
from silodp.runs.fitting import refuse_other_kinds
from silodp.runs.folder import RunFolder, read_experiment
from silodp.runs.parts import ServerParts
from silodp.runs.places import new_folder
from silodp.runs.record import epsilon_of, round_record
from silodp.runs.result import Result, write_result
from silodp.runs.resuming import refuse_another, refuse_length
from silodp.runs.schema import CohortInShort, RoundRecord, or_nan
from silodp.runs.threads import threads
from silodp.runs.version import version

log = logging.getLogger("silodp")

OnRound = Callable[[RoundRecord], None]


def train(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    **own: Unpack[Own],
) -> Result:
    """Runs an experiment from its first round.

    Args:
        experiment: what to run.
        out: a new folder for the run; default runs/NAME-1, -2, …
        on_round: called with each line of metrics.jsonl.
        own: objects that replace what the experiment names, see `Own`.
    """
    refuse_other_kinds(experiment, own.get("cohort"), own.get("model"))
    with new_folder(out, experiment.name) as path:
        parts = build(experiment, **own)
        with closing(parts.engine):
            return train_parts(parts, experiment, path, on_round)


def train_parts(
    parts: ServerParts,
    asked: Experiment,
    path: Path,
    on_round: OnRound | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Result:
    """Trains a federation, wherever its hospitals are.

    Args:
        parts: of the federation.
        asked: the experiment before it was resolved.
        path: a folder that is new or empty.
        on_round: called with each line of metrics.jsonl.
        prepare: called when the folder exists and before anything is released.
    """
    state = parts.first_state()  # before there is a folder: it refuses what cannot begin
    for line in parts.warnings(asked):
        log.warning(line)
    with RunFolder.create(path, parts.experiment) as folder:
        run = _Run(parts, state, folder)
        prepare()
        run.save()
        return run.finish(on_round)


def resume(
    folder: str | Path, *, rounds: int | None = None, on_round: OnRound | None = None, **own: Unpack[Own]
) -> Result:
    """Continues from the last checkpoint. Objects that the run was started with must be given again.

    Args:
        folder: of the run.
        rounds: another number of rounds; the result is that of a run with this number from the start. A
            finished run has no optimizer states left, so it continues only with local.state = fresh.
        on_round: called with each further line of metrics.jsonl.
        own: see `Own`.
    """
    with RunFolder.open(Path(folder)) as files:
        experiment = read_experiment(files.path)
        parts = build(experiment if rounds is None else experiment.change(rounds=rounds), **own)
        with closing(parts.engine):
            return resume_parts(parts, files, on_round)


def resume_parts(parts: ServerParts, files: RunFolder, on_round: OnRound | None = None) -> Result:
    """Continues a run, whose folder the caller has opened, with a federation built again."""
    run = _Run(parts, parts.first_state(), files)
    run.restore()
    return run.finish(on_round)


class _Run:
    """One run: the parts of its federation, its locked folder, its state, and the best round so far."""

    def __init__(self, parts: ServerParts, state: State, folder: RunFolder) -> None:
        self.parts, self.folder, self.ledger = parts, folder, folder.ledger()
        self.experiment, self.engine, self.federation = parts.experiment, parts.engine, parts.federation
        self.version = version()  # now, since a checkout may change during the run
        self.state = state
        self.best_round = 0
        self.best_value = -math.inf
        self.best_parameters = state.model
        self.identity = {
            "experiment": self.experiment.to_toml(),
            "cohort": parts.cohort_digest(),
            "model": parts.model.identity,
        }

    def save(self) -> None:
        """Saves a checkpoint, after the hospitals' states; at the end these are deleted."""
        if not self._is_over:
            self.engine.save_states(self.folder.hospitals, self.state.round)
        self.folder.save_checkpoint(
            {
                "identity": self.identity,
                "ledger": self.ledger.head,
                "over": self._is_over,
                # The secret of the draws is kept while a round is left to train.
                "state": vars(self.state) | ({"draws": ""} if self._is_over else {}),
                "best": [self.best_round, self.best_value, self.best_parameters],
            }
        )
        if self._is_over:
            self.engine.clear_states(self.folder.hospitals)

    @property
    def _is_over(self) -> bool:
        return self.state.round >= self.experiment.rounds or self.state.stopped is not None

    def restore(self) -> None:
        """Loads the run's state; refuses a run whose files contradict each other, without changing it."""
        folder, ledger = self.folder, self.ledger
        new_draws, longer = self.state.draws, False
        checkpoint = folder.load_checkpoint(self.parts.model.values.device)
        if checkpoint is not None:
            refuse_another(folder.path, checkpoint, self.identity, self.state, self.best_parameters)
            self.state = State(**checkpoint["state"])
            self.best_round, self.best_value, self.best_parameters = checkpoint["best"]
            longer = checkpoint["over"] and not self._is_over
        if problems := conflicts(read_run_files(folder.path), ledger.events, ledger.chains):
            raise InputError(f"{folder.path}: {problems[0]}; restore the file, or start a new run")
        before = read_experiment(folder.path).rounds
        refuse_length(folder.path, self.experiment, before, self.state, ledger.events, longer)
        if checkpoint is not None and not self._is_over:
            self.engine.load_states(folder.hospitals, self.state.round)
        ledger.repair()
        # After a kill from here on, `resume` finishes the run, with the old or the new number of rounds.
        if longer:
            self.state.draws = new_draws  # the old secret was deleted at the end
            folder.remove_results()
        if self.experiment.rounds != before:
            folder.save_experiment(self.experiment)
        if checkpoint is None or longer or checkpoint["ledger"] != ledger.head:
            self.save()  # so that it knows of rounds that are removed from metrics.jsonl now
        folder.truncate_metrics(self.state.round)
        if versions := folder.record_version(self.state.round):
            then, now = (f"silodp {one['silodp']} and PyTorch {one['torch']}" for one in versions)
            log.warning("%s: trained with %s, continued with %s; results may differ", folder.path, then, now)

    def finish(self, on_round: OnRound | None) -> Result:
        """Runs all remaining rounds, then the test."""
        with threads(self.experiment.threads):
            description = self.parts.describe_cohort()
            self.folder.save_cohort(description)
            self._train(on_round)
            if not self.best_round:  # the headline metric was never defined
                self.best_round, self.best_parameters = self.state.round, self.state.model
            best = self.best_round, self.best_parameters
            # cohorts/ makes it and knows nothing of runs/; a test holds it to the schema.
            cohort = cast(CohortInShort, in_short(description))
            return write_result(self.parts, self.state, best, self.version, self.folder, self.ledger, cohort)

    def _train(self, on_round: OnRound | None) -> None:
        started, capped_at, ends = time.perf_counter(), 0, False
        for done in () if self._is_over else self.federation.rounds(self.state, self.ledger):
            for name, reason in done.release.absent.items():
                log.warning("round %d: %s counts as absent: %s", done.plan.round, name, reason)
            for name, reason in done.release.ignored:
                log.warning("round %d: an answer of %s is ignored: %s", done.plan.round, name, reason)
            if done.capped and done.plan.intermediaries != capped_at:
                capped_at = done.plan.intermediaries
                log.warning(
                    "v is capped at %d: the smallest hospital has no images or no patients for more",
                    capped_at,
                )
            scores = self.engine.evaluate(self.state.model, "validation", thorough=False)
            validation = {name: one.values for name, one in scores.items()}
            started, before = time.perf_counter(), started
            # With a seed, later rounds that are in the ledger already will be repeated as they were.
            again = self.experiment.privacy.reproducible
            so_far = [event for event in self.ledger.events if not again or event.round <= done.plan.round]
            head = self.ledger.head_after(done.release.events)
            sizes, epsilon = self.federation.hospitals, epsilon_of(self.experiment, so_far)
            record = round_record(done, sizes, validation, epsilon, started - before, head)
            headline = or_nan(record["validation"]["mean"].get(self.parts.task.headline))
            if headline > self.best_value:
                self.best_round, self.best_value = done.plan.round, headline
                self.best_parameters = self.state.model
            self.folder.add_metrics(record)
            if done.plan.round % self.experiment.checkpoint_every == 0:
                self.save()
                ends = self._is_over
            if on_round is not None:
                on_round(record)
        if self.state.stopped:
            log.warning("the budget ends the run after round %d: %s", self.state.round, self.state.stopped)
        if not ends:  # the final checkpoint is the small one
            self.save()
