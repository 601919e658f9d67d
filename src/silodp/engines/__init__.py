"""An engine moves plans to hospitals and their updates back. It knows nothing of the algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from silodp.exchange import HospitalUpdate, RoundPlan


class Engine(Protocol):
    """What the federation asks of an engine, wherever the hospitals are."""

    def train(self, plan: RoundPlan) -> Iterator[HospitalUpdate]:
        """The answers of the plan's participants, as they come. A hospital that fails sends none."""
        ...

    def evaluate(self, parameters: Tensor, part: str, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Each hospital's metrics on its own data."""
        ...

    def state(self) -> dict[str, Any]:
        """What the hospitals keep across rounds, for a checkpoint."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...
