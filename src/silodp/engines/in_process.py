"""All hospitals in this process, one after the other, on one resident model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from silodp.exchange import HospitalUpdate, RoundPlan
from silodp.hospital import Hospital

log = logging.getLogger(__name__)


class InProcess:
    """The default engine: fast because nothing is moved or built twice."""

    def __init__(self, hospitals: Sequence[Hospital]) -> None:
        self._hospitals = {hospital.name: hospital for hospital in hospitals}

    def train(self, plan: RoundPlan) -> Iterator[HospitalUpdate]:
        failed: list[Exception] = []
        for name in plan.participants:
            try:
                update = self._hospitals[name].train(plan)
            except Exception as error:
                log.warning("round %d: %s failed: %s", plan.round, name, error)
                failed.append(error)
                continue
            yield update
        if failed and len(failed) == len(plan.participants):
            raise failed[-1]  # nobody could train: this is no hospital's fault

    def evaluate(self, parameters: Tensor, part: str, *, thorough: bool) -> dict[str, dict[str, float]]:
        return {
            name: hospital.evaluate(parameters, part, thorough=thorough)
            for name, hospital in self._hospitals.items()
        }

    def state(self) -> dict[str, Any]:
        return {name: hospital.states for name, hospital in self._hospitals.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, states in state.items():
            self._hospitals[name].states = states
