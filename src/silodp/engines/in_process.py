"""All hospitals in this process, one after the other, on one resident model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
        self._names = [hospital.name for hospital in hospitals]
        self._hospitals = {hospital.name: hospital for hospital in hospitals}
        self.diagnostics: dict[str, Diagnostics] = {}

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        self.diagnostics.clear()
        failed = []
        for name, answer in self._each("answer", asked, plan, diagnose=diagnose):
            if isinstance(answer, Exception):
                log.warning("round %d: %s failed: %s", plan.round, name, answer)
                failed.append(answer)
                continue
            contribution, measured = answer
            if measured is not None:
                self.diagnostics[name] = measured
            yield contribution
        if failed and len(failed) == len(asked):
            raise failed[-1]  # nobody could train: this is no hospital's fault

    def measure_norms(self, plan: RoundPlan, asked: Sequence[str]) -> Tensor:
        """Every update is kept until its hospital answers: memory for all of them at once."""
        found = [norms for _, norms in self._each("measure_norms", asked, plan)]
        norms = [one for one in found if not isinstance(one, Exception)]  # it will fail again, and be told of
        return torch.cat(norms) if norms else torch.empty(0, dtype=torch.float64)

    def evaluate(
        self, parameters: Tensor, part: str, *, thorough: bool, batch: EvaluationBatch | None = None
    ) -> dict[str, Scores]:
        asked = self._each("evaluate", self._names, parameters, part, thorough=thorough, batch=batch)
        return {name: _or_raise(scores) for name, scores in asked}

    def save_states(self, folder: Path, round_: int) -> None:
        for _, done in self._each("save_states", self._names, folder, round_):
            _or_raise(done)

    def load_states(self, folder: Path, round_: int) -> None:
        for _, done in self._each("load_states", self._names, folder, round_):
            _or_raise(done)

    def clear_states(self, folder: Path) -> None:
        remove_folder(folder)

    def close(self) -> None:
        """Nothing is held but memory."""

    def _each(
        self, method: str, names: Sequence[str], *given: Any, **named: Any
    ) -> Iterator[tuple[str, Any]]:
        """What the method returns at each hospital, or the exception it raises, in the order of `names`."""
        for name in names:
            yield name, ask(self._hospitals[name], method, given, named)


def ask(hospital: Hospital, method: str, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What the method returns, or the exception it raises."""
    try:
        return getattr(hospital, method)(*given, **named)
    except Exception as error:
        return error


def _or_raise(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer
