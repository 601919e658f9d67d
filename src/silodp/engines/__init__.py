"""An engine carries plans to hospitals and their contributions back, whatever the algorithm is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a hospital's link carries bytes by a module of this room, and starts without PyTorch
    from torch import Tensor

    from silodp.messages import Contribution, Diagnostics, RoundPlan
    from silodp.settings import EvaluationBatch
    from silodp.tasks.scores import Scores


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

    def measure_norms(self, plan: RoundPlan, asked: Sequence[str]) -> Tensor:
        """The un-noised norms of all updates of a round whose plan has no C yet (the authors' median).

        An engine whose hospitals are elsewhere refuses with an InputError: norms do not travel.
        """
        ...

    def evaluate(
        self, parameters: Tensor, part: str, *, thorough: bool, batch: EvaluationBatch | None = None
    ) -> dict[str, Scores]:
        """What the model scores on each hospital's own data.

        Args:
            parameters: (d,) of the model.
            part: "validation" or "test".
            thorough: every metric, with intervals; otherwise what is cheap enough for every round.
            batch: what the network sees at a time; default: as the experiment says.
        """
        ...

    def save_states(self, folder: Path, round_: int) -> None:
        """Every hospital saves what it carries from round to round, as it is after `round_`.

        Remote hospitals save it on their own disk, hospitals in this process in `folder`; it is no part of
        the server's checkpoint. It is on disk when this returns; the state saved before is kept until the
        next.
        """
        ...

    def load_states(self, folder: Path, round_: int) -> None:
        """Every hospital loads what it saved after `round_`; 0: its state before the first round."""
        ...

    def clear_states(self, folder: Path) -> None:
        """Deletes what was saved, after the last round."""
        ...

    def close(self) -> None:
        """Ends the engine, after the run or after an error."""
        ...
