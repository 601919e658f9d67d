"""An engine moves plans to hospitals and their contributions back. It knows nothing of the algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from silodp.messages import Contribution, Diagnostics, RoundPlan


class Engine(Protocol):
    """What the federation asks of an engine, wherever the hospitals are."""

    @property
    def diagnostics(self) -> Mapping[str, Diagnostics]:
        """Un-noised statistics of those who answered the last plan, by name, where they were asked for.

        One mapping for all rounds: it fills while answers come. Empty in every engine whose hospitals are
        elsewhere: they do not travel.
        """
        ...

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        """The answers of the hospitals asked, as they come. A hospital that fails sends none."""
        ...

    def rehearse(self, plan: RoundPlan, asked: Sequence[str]) -> Tensor:
        """The un-noised norms of all updates of a round whose plan has no C yet (the authors' median).

        An engine whose hospitals are elsewhere refuses with an InputError: norms do not travel.
        """
        ...

    def evaluate(self, parameters: Tensor, part: str, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Each hospital's metrics on its own data."""
        ...

    def state(self) -> dict[str, Any]:
        """What the hospitals keep across rounds, for a checkpoint."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...
