"""silodp's rounds, built as in a user's program."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from silodp.bench.workloads import Workload
from silodp.local.splitting import split_sizes
from silodp.local.steps import planned_steps
from silodp.privacy.ledger import Ledger
from silodp.runs.build import build


class FederatedRounds:
    """A private federation, one round at a time: training, clipping, noise, ledger on disk, server step."""

    def __init__(
        self, workload: Workload, device: str = "cpu", settings: Mapping[str, Any] | None = None
    ) -> None:
        """Builds a federation.

        Args:
            settings: of an experiment, such as {"threads": 1}; and `workers` as for `build`.
        """
        own = dict(settings or {})
        workers = own.pop("workers", 1)
        self.parts = build(
            workload.experiment(own),
            cohort=workload.cohort(),
            model=workload.make_network(),
            workers=workers,
            device=device,
        )
        torch.set_num_threads(self.parts.experiment.threads or torch.get_num_threads())  # as `train` does
        self._folder = tempfile.TemporaryDirectory()
        ledger = Ledger(Path(self._folder.name) / "ledger")
        self._rounds = self.parts.federation.rounds(self.parts.first_state(), ledger)

    @property
    def steps(self) -> int:
        """Planned optimizer steps of a round."""
        experiment = self.parts.experiment
        count = experiment.intermediaries.asked
        assert count is not None
        sizes = self.parts.federation.hospitals.values()
        return sum(planned_steps(one, experiment.local) for size in sizes for one in split_sizes(size, count))

    def round(self) -> None:
        """Trains a round and waits for the device."""
        done = next(self._rounds)
        if done.release.absent:
            raise RuntimeError(f"not everyone took part: {done.release.absent}")
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def close(self) -> None:
        """Closes the engine and deletes the ledger."""
        self.parts.engine.close()
        self._folder.cleanup()
