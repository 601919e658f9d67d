"""Logs a run to an MLflow server or a local MLflow folder."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten

from typing_extensions import TypedDict

from silodp.errors import InputError
from silodp.experiment import ResolvedExperiment
from silodp.files import write_json
from silodp.runs.schema import RoundRecord, Summary, read_as
from silodp.tracking import Numbers, flat_settings, left_out, result_numbers, round_numbers, without_password

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # no third party learns of a hospital's run
    "MLFLOW_ALLOW_FILE_STORE": "true",  # ./mlruns, or a folder that MLFLOW_TRACKING_URI names
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # an unreachable server must not delay the training for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Set where the environment does not."""


class _Kept(TypedDict):
    """mlflow.json: server and id of the MLflow run."""

    tracking_uri: str
    run_id: str


class MLflow:
    """A run at MLflow's tracking URI, whose id is kept in the run folder.

    MLflow cannot delete points, so a round is sent only once a checkpoint has it, so that it is never redone.
    """

    option = "--mlflow"

    def __init__(self) -> None:
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        try:
            import mlflow
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise InputError(
                "--mlflow: MLflow is not installed; `pip install 'silodp[mlflow]'`, or leave it out"
            ) from None
        self.uri = mlflow.get_tracking_uri()
        if not mlflow.is_tracking_uri_set() and find_spec("sqlalchemy") is None:
            # MLflow's default is a database, for which the light client has no driver.
            self.uri = Path("mlruns").absolute().as_uri()
        try:
            self.client = MlflowClient(self.uri)
        except (MlflowException, OSError) as error:
            why = shorten(without_password(str(error)), 120, placeholder=" …")
            raise InputError(
                f"MLFLOW_TRACKING_URI = {without_password(self.uri)}: MLflow cannot use it "
                f"({why}); give a server's address or a folder; "
                "a database needs all of MLflow (`pip install mlflow`)"
            ) from None
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # our own warning is enough
        self._missing = MlflowException
        self._sent: set[tuple[str, int]] = set()
        self._settings: dict[str, str] = {}  # logged already; MLflow does not let them change
        self._waiting: list[RoundRecord] = []

    def begin(self, folder: Path, experiment: ResolvedExperiment, rounds: Sequence[RoundRecord]) -> None:
        from mlflow.entities import Param

        self._every = experiment.checkpoint_every
        self.run = self._known(folder / "mlflow.json") or self._new(folder)
        named = flat_settings(experiment)
        settings = [Param(name, str(value)) for name, value in named.items() if name not in self._settings]
        for start in range(0, len(settings), 100):  # MLflow's limit
            self.client.log_batch(self.run, params=settings[start : start + 100])
        self.client.set_tag(self.run, "not_covered_by_epsilon", left_out(folder, experiment, rounds))
        self.add(rounds)

    def add(self, rounds: Sequence[RoundRecord]) -> None:
        self._waiting += rounds
        if self._waiting and self._waiting[-1]["round"] % self._every == 0:
            self._send()

    def end(self, summary: Summary | None) -> None:
        if summary is None:
            self.client.set_terminated(self.run, "KILLED")
            return
        self._send()
        self._numbers(result_numbers(summary))
        self.client.set_tag(self.run, "not_covered_by_epsilon", "; ".join(summary["not_covered_by_epsilon"]))
        self.client.set_terminated(self.run, "FINISHED")

    def _known(self, path: Path) -> str | None:
        """The id of the earlier MLflow run, if this server still has it."""
        kept = read_as(_Kept, path, "remove it to begin another run there") if path.exists() else None
        if kept is None or kept["tracking_uri"] != without_password(self.uri):
            return None
        run = kept["run_id"]
        try:
            data = self.client.get_run(run).data
        except self._missing as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        self._settings = data.params
        for name in data.metrics:
            self._sent |= {(name, point.step) for point in self.client.get_metric_history(run, name)}
        self.client.update_run(run, "RUNNING")
        return run

    def _new(self, folder: Path) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "silodp")
        found = self.client.get_experiment_by_name(name)
        group = found.experiment_id if found else self.client.create_experiment(name)
        run = str(self.client.create_run(group, run_name=folder.resolve().name).info.run_id)
        kept: _Kept = {"tracking_uri": without_password(self.uri), "run_id": run}
        write_json(folder / "mlflow.json", kept)
        return run

    def _send(self) -> None:
        self._numbers({record["round"]: round_numbers(record) for record in self._waiting})
        self._waiting = []

    def _numbers(self, by_round: Mapping[int, Numbers]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = [
            Metric(key, number, now, step)
            for step, numbers in by_round.items()
            for key, number in ((re.sub(r"[^\w.\- /]", "_", name), n) for name, n in numbers.items())
            if (key, step) not in self._sent
        ]
        for start in range(0, len(points), 1000):
            self.client.log_batch(self.run, metrics=points[start : start + 1000])
        self._sent |= {(point.key, point.step) for point in points}
