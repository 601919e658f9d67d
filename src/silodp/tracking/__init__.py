"""Logs a run to TensorBoard and MLflow, in addition to its own files.

Trackers only get what is in metrics.jsonl and summary.json, never an image. It is as public as the tracker's
server, and no ε covers validation metrics, losses and other diagnostics; see docs/tracking.md.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Protocol

from silodp.experiment import ResolvedExperiment
from silodp.runs.folder import RunFolder, read_experiment
from silodp.runs.record import not_covered
from silodp.runs.schema import TESTED, MetricsRecord, RoundRecord, Summary
from silodp.runs.training import OnRound

log = logging.getLogger("silodp")

Numbers = dict[str, float]


class Tracker(Protocol):
    """A tracker for `tracked`. An exception ends its tracking, never the training."""

    option: str

    def begin(self, folder: Path, experiment: ResolvedExperiment, rounds: Sequence[RoundRecord]) -> None:
        """Begins with all recorded rounds, of which a tracker may have some from before an interruption."""
        ...

    def add(self, rounds: Sequence[RoundRecord]) -> None: ...

    def end(self, summary: Summary | None) -> None:
        """The run is over; without a summary it was interrupted."""
        ...


@contextmanager
def tracked(
    folder: str | Path, *, tensorboard: bool = False, mlflow: bool = False, also: OnRound | None = None
) -> Iterator[OnRound]:
    """An `on_round` for `train` or `resume` that logs the run in `folder` to trackers.

        with tracked("runs/mine", tensorboard=True) as on_round:
            silodp.train(experiment, out="runs/mine", on_round=on_round)

    Args:
        folder: of the run; nothing is written there before its first round.
        tensorboard: whether to write event files into FOLDER/tensorboard.
        mlflow: whether to log to the tracking URI of MLflow.
        also: called first with every round.
    """
    path = Path(folder)
    trackers: list[Tracker] = []
    if tensorboard:
        from silodp.tracking.tensorboard import TensorBoard

        trackers.append(TensorBoard())
    if mlflow:
        from silodp.tracking.mlflow import MLflow

        trackers.append(MLflow())
    begun = False

    def send(act: Callable[[Tracker], None]) -> None:
        for tracker in list(trackers):
            try:
                act(tracker)
            except Exception as error:  # an unreachable server or a full disk must not end the training
                trackers.remove(tracker)
                why = shorten(without_password(str(error)), 200, placeholder=" …")
                log.warning(
                    "%s failed (%s); the run goes on without. `silodp resume %s %s` logs the rest",
                    tracker.option, why, path, tracker.option,
                )  # fmt: skip

    def begin() -> None:
        nonlocal begun
        begun = True
        send(lambda tracker: tracker.begin(path, read_experiment(path), RunFolder(path).metrics()))

    def on_round(record: RoundRecord) -> None:
        if also is not None:
            also(record)
        if begun:
            send(lambda tracker: tracker.add([record]))
        else:
            begin()  # not earlier: metrics.jsonl could have had rounds after the checkpoint

    try:
        yield on_round
    except BaseException:
        if begun:
            send(lambda tracker: tracker.end(None))
        raise
    if not begun:
        begin()  # a finished run that was resumed
    send(lambda tracker: tracker.end(RunFolder(path).summary()))


def round_numbers(record: RoundRecord) -> Numbers:
    """A line of metrics.jsonl as a flat mapping of finite numbers.

    The names sort the hospital's ε before the others.
    """
    epsilon, swap = record["epsilon"], record["epsilon"]["replace_one"]
    return _finite(
        {
            "epsilon/hospital": epsilon["hospital"],
            "epsilon/hospital_replace_one": swap["hospital"],
            "epsilon/image": epsilon["image"],
            "epsilon/intermediary": epsilon["intermediary"],
            "epsilon/intermediary_replace_one": swap["intermediary"],
            **_metrics("validation", record["validation"]),
            "train/loss": record["train_loss"],
            "diagnostics/lambda": record["lambda"],
            "diagnostics/xi": record["xi"],
            "diagnostics/phi": record["phi"],
            "diagnostics/cosine_std": record["cosine_std"],
            "round/intermediaries": record["intermediaries"],
            "round/clip_bound": record["clip_bound"],
            "round/noise_std": record["noise_std"],
            "round/participants": len(record["participants"]),
            "seconds/round": record["seconds"],
            "seconds/training": record["training_seconds"],
        }
    )


def result_numbers(summary: Summary) -> dict[int, Numbers]:
    """Test metrics of the last and the best model, by the round of the model."""
    found: dict[int, Numbers] = {}
    for which in TESTED:
        test = summary["test"][which]
        found.setdefault(test["round"], {}).update(_finite(_metrics(f"test_{which}", test)))
    return found


def flat_settings(experiment: ResolvedExperiment) -> dict[str, bool | int | float | str]:
    """Every setting by its dotted name, except paths on this machine."""
    found: dict[str, bool | int | float | str] = {}
    for name, value in experiment.model_dump(exclude_none=True).items():
        for key, setting in value.items() if isinstance(value, dict) else [("", value)]:
            plain = setting if isinstance(setting, bool | int | float | str) else str(list(setting))
            found[f"{name}.{key}" if key else name] = plain
    if experiment.model.start is not None:
        found["model.start"] = Path(experiment.model.start).stem
    return {name: value for name, value in found.items() if name not in ("cohort.path", "cohort.cache")}


def _metrics(part: str, content: MetricsRecord) -> dict[str, float | None]:
    named = {f"{part}/{metric}": value for metric, value in content["mean"].items()}
    for hospital, metrics in content["hospitals"].items():
        place = f"{part}_hospitals/{hospital.replace('/', '_')}"
        named |= {f"{place}/{metric}": value for metric, value in metrics.items()}
    return named


def _finite(named: Mapping[str, float | None]) -> Numbers:
    return {name: float(value) for name, value in named.items() if value is not None and math.isfinite(value)}


def without_password(text: str) -> str:
    """The text without the credentials of its URIs: files and messages are passed on."""
    return re.sub(r"//[^/@\s]*@", "//", text)


def left_out(folder: Path, experiment: ResolvedExperiment, rounds: Sequence[RoundRecord]) -> str:
    """What ε does not cover, as far as known when a tracker begins."""
    if not rounds:
        return ""
    return "; ".join(not_covered(experiment, rounds[-1]["epsilon"], RunFolder(folder).cohort()))
