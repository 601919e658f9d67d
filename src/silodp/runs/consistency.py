"""Checks a run's other files against its ledger.

A hash chain does not show that its end is missing. The checkpoint, metrics.jsonl, summary.json and the model
are written after releases, so each of them shows that a ledger has lost some. Only a hash or a signed
statement kept elsewhere (`signing.py`) shows that the whole folder was rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from silodp.files import sha256
from silodp.privacy.events import Event
from silodp.runs.folder import CheckpointFacts, RunFolder, but_for_rounds
from silodp.runs.schema import RoundRecord, Summary


@dataclass(frozen=True)
class RunFiles:
    """The content of a run's files, except for the ledger.

    Attributes:
        experiment: experiment.toml as it is.
        metrics: a record for each round.
        checkpoint: None where there is none.
        model: SHA-256 of model.safetensors; empty before a run has ended.
        summary: summary.json; None before a run has ended.
    """

    experiment: str
    metrics: list[RoundRecord]
    checkpoint: CheckpointFacts | None
    model: str
    summary: Summary | None


def read_run_files(folder: Path) -> RunFiles:
    """Reads the files, last written first, BEFORE the ledger is read: a running run has no conflicts then."""
    way_out = "restore the file, or remove it and resume the run to have it written again"
    summary = RunFolder(folder).summary(way_out)
    model = folder / "model.safetensors"
    digest = sha256(model) if model.exists() else ""
    checkpoint = RunFolder(folder).checkpoint_facts()
    metrics = RunFolder(folder).metrics()
    return RunFiles(
        (folder / "experiment.toml").read_text(encoding="utf-8"), metrics, checkpoint, digest, summary
    )


def conflicts(traces: RunFiles, events: Sequence[Event], chains: Sequence[str]) -> list[str]:
    """All contradictions between the files and a ledger with these events and hashes."""
    return [
        *_of_the_checkpoint(traces, chains),
        *_of_the_metrics(traces.metrics, events, chains),
        *_of_the_end(traces, events, chains),
    ]


def _of_the_checkpoint(traces: RunFiles, chains: Sequence[str]) -> list[str]:
    found, problems = traces.checkpoint, []
    if found is None:
        return []
    if found.head and found.head not in chains:
        problems.append("ledger.jsonl: releases that the checkpoint knows of are missing at the end")
    if but_for_rounds(found.experiment) != but_for_rounds(traces.experiment):
        problems.append("experiment.toml is not what the run was started with")
    if not found.is_over and (traces.model or traces.summary):
        later = "model.safetensors" if traces.model else "summary.json"
        problems.append(f"checkpoint.pt is older than {later}, which was written when no round was left")
    return problems


def _of_the_metrics(
    metrics: Sequence[RoundRecord], events: Sequence[Event], chains: Sequence[str]
) -> list[str]:
    problems = []
    updates = {event.round: event for event in events if event.released == "model update"}
    for line in metrics:
        event = updates.get(line["round"])
        if event is None:
            problems.append(f"metrics.jsonl has round {line['round']}, the ledger does not")
        elif event.part == "intermediary" and event.contributions != line["intermediaries"]:
            problems.append(f"round {line['round']}: metrics.jsonl has another v than the ledger")
    unknown = [line["round"] for line in metrics if line["ledger"] and line["ledger"] not in chains]
    if unknown:
        problems.append(
            f"ledger.jsonl: releases of round {unknown[0]} that metrics.jsonl knows of are missing"
        )
    return problems


def _of_the_end(traces: RunFiles, events: Sequence[Event], chains: Sequence[str]) -> list[str]:
    """A finished run releases nothing more, so its summary has the ledger's last hash."""
    summary, problems = traces.summary, []
    head = chains[-1] if chains else ""
    if summary is not None:
        lacks = summary["rounds"] not in [0, *(event.round for event in events)]
        if lacks or summary["ledger"] != head:
            problems.append("ledger.jsonl is not the one that summary.json was written with")
        if traces.model and summary["model"] != traces.model:
            problems.append("model.safetensors is not the one that summary.json was written with")
    if traces.model and not events:
        problems.append("model.safetensors was trained, but the ledger has no release")
    return problems
