"""Writes TensorBoard event files into a run folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from silodp.experiment import ResolvedExperiment
from silodp.files import private_folder
from silodp.runs.schema import RoundRecord, Summary
from silodp.tracking import Numbers, flat_settings, left_out, result_numbers, round_numbers


class TensorBoard:
    """Event files, rewritten from the records when a run is resumed: no step is missing or double.

    tensorboardX's SummaryWriter is not used: its thread dies on a full disk and then blocks the training.
    """

    option = "--tensorboard"

    def __init__(self) -> None:
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2, summary_pb2

        self._open, self._summary = event_file_writer.EventsWriter, summary
        self._event, self._content = event_pb2, summary_pb2

    def begin(self, folder: Path, experiment: ResolvedExperiment, rounds: Sequence[RoundRecord]) -> None:
        logs = folder / "tensorboard"
        private_folder(logs)
        for old in logs.glob("events.out.tfevents.*"):
            old.unlink()
        self._file = self._open(str(logs / "events"))
        for file in logs.iterdir():
            file.chmod(0o600)
        # Makes an open TensorBoard discard what it has read.
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._file.write_event(self._event.Event(step=0, wall_time=time.time(), session_log=start))
        metrics = rounds[-1]["validation"]["mean"] if rounds else {}
        shown = {f"{part}/{metric}": 0 for part in ("validation", "test_last") for metric in metrics}
        *opening, self._closing = self._summary.hparams(flat_settings(experiment), shown)
        for content in (*opening, self._note(left_out(folder, experiment, rounds))):
            self._write(0, content)
        self.add(rounds)

    def add(self, rounds: Sequence[RoundRecord]) -> None:
        for record in rounds:
            self._numbers(record["round"], round_numbers(record))
        self._file.flush()

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            for step, numbers in result_numbers(summary).items():
                self._numbers(step, numbers)
            self._write(summary["rounds"], self._note("; ".join(summary["not_covered_by_epsilon"])))
            self._write(summary["rounds"], self._closing)
        self._file.close()

    def _note(self, text: str) -> Any:
        return self._summary.text("not covered by ε", text)

    def _numbers(self, step: int, numbers: Numbers) -> None:
        value = self._content.Summary.Value
        found = [value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._write(step, self._content.Summary(value=found))

    def _write(self, step: int, content: Any) -> None:
        self._file.write_event(self._event.Event(step=step, wall_time=time.time(), summary=content))
