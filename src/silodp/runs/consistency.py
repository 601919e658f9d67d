"""Checks a run's other files against its ledger.

A hash chain does not show that its end is missing. The checkpoint, metrics.jsonl, summary.json and the model
are written after releases, so each of them shows that a ledger has lost some. Only a hash or a signed
statement kept elsewhere (`signing.py`) shows that the whole folder was rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def conflicts(files: RunFiles, events: Sequence[Event], chains: Sequence[str]) -> list[str]:
    """All contradictions between the files and a ledger with these events and hashes."""
    return [
        *_of_the_checkpoint(files, chains),
        *_of_the_metrics(files.metrics, events, chains),
        *_of_the_end(files, events, chains),
    ]


def _of_the_checkpoint(files: RunFiles, chains: Sequence[str]) -> Iterator[str]:
    found = files.checkpoint
    if found is None:
        return
    if found.head and found.head not in chains:
        yield "ledger.jsonl: releases that the checkpoint knows of are missing at the end"
    if but_for_rounds(found.experiment) != but_for_rounds(files.experiment):
        yield "experiment.toml is not what the run was started with"
    if not found.is_over and (files.model or files.summary):
        later = "model.safetensors" if files.model else "summary.json"
        yield f"checkpoint.pt is older than {later}, which was written when no round was left"


def _of_the_metrics(
    metrics: Sequence[RoundRecord], events: Sequence[Event], chains: Sequence[str]
) -> Iterator[str]:
    updates = {event.round: event for event in events if event.released == "model update"}
    for line in metrics:
        event = updates.get(line["round"])
        if event is None:
            yield f"metrics.jsonl has round {line['round']}, the ledger does not"
        elif event.part == "intermediary" and event.contributions != line["intermediaries"]:
            yield f"round {line['round']}: metrics.jsonl has another v than the ledger"
    unknown = [line["round"] for line in metrics if line["ledger"] and line["ledger"] not in chains]
    if unknown:
        yield f"ledger.jsonl: releases of round {unknown[0]} that metrics.jsonl knows of are missing"


def _of_the_end(files: RunFiles, events: Sequence[Event], chains: Sequence[str]) -> Iterator[str]:
    """A finished run releases nothing more, so its summary has the ledger's last hash."""
    summary = files.summary
    if summary is not None:
        lacks = summary["rounds"] not in [0, *(event.round for event in events)]
        if lacks or summary["ledger"] != (chains[-1] if chains else ""):
            yield "ledger.jsonl is not the one that summary.json was written with"
        if files.model and summary["model"] != files.model:
            yield "model.safetensors is not the one that summary.json was written with"
    if files.model and not events:
        yield "model.safetensors was trained, but the ledger has no release"
