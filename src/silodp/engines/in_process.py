"""All hospitals in this process, one after the other, on one resident model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from silodp.files import remove_folder
from silodp.hospital import Hospital
from silodp.messages import Contribution, Diagnostics, RoundPlan
from silodp.settings import EvaluationBatch
from silodp.tasks.scores import Scores

log = logging.getLogger(__name__)


class InProcess:
    """The default engine: fast because nothing is moved or built twice."""

    def __init__(self, hospitals: Sequence[Hospital]) -> None:
        self._hospitals = {hospital.name: hospital for hospital in hospitals}
        self.diagnostics: dict[str, Diagnostics] = {}

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        self.diagnostics.clear()
        failed = []
        for name in asked:
            try:
                answer, measured = self._hospitals[name].answer(plan, diagnose=diagnose)
            except Exception as error:
                log.warning("round %d: %s failed: %s", plan.round, name, error)
                failed.append(error)
                continue
            if measured is not None:
                self.diagnostics[name] = measured
            yield answer
        if failed and len(failed) == len(asked):
            raise failed[-1]  # nobody could train: this is no hospital's fault

    def measure_norms(self, plan: RoundPlan, asked: Sequence[str]) -> Tensor:
        """Every update is kept until its hospital answers: memory for all of them at once."""
        norms = []
        for name in asked:
            try:
                norms.append(self._hospitals[name].measure_norms(plan))
            except Exception:  # it will fail again when it answers, and is told of there
                continue
        return torch.cat(norms) if norms else torch.empty(0, dtype=torch.float64)

    def evaluate(
        self, parameters: Tensor, part: str, *, thorough: bool, batch: EvaluationBatch | None = None
    ) -> dict[str, Scores]:
        return {
            name: hospital.evaluate(parameters, part, thorough=thorough, batch=batch)
            for name, hospital in self._hospitals.items()
        }

    def save_states(self, folder: Path, round_: int) -> None:
        for hospital in self._hospitals.values():
            hospital.save_states(folder, round_)

    def load_states(self, folder: Path, round_: int) -> None:
        for hospital in self._hospitals.values():
            hospital.load_states(folder, round_)

    def clear_states(self, folder: Path) -> None:
        remove_folder(folder)

    def close(self) -> None:
        """Nothing is held but memory."""
