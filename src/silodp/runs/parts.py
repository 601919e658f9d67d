"""The parts of a federation: what is public, the server, and hospitals in this process."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from silodp.cohorts import Cohort
from silodp.cohorts.description import describe
from silodp.engines import Engine
from silodp.experiment import Experiment, ResolvedExperiment
from silodp.facts import HospitalFacts, describe_facts
from silodp.federation import Federation, State
from silodp.local.parameters import FlatModel
from silodp.local.trainer import LocalTrainer, normalises_over_batch
from silodp.mechanism import Mechanism
from silodp.runs.warnings import about_delta, about_hospitals, about_masks
from silodp.tasks import Task


@dataclass(frozen=True)
class Public:
    """What the server and every hospital derive, independently, from the experiment and public facts.

    Attributes:
        experiment: resolved, without open defaults.
        facts: of all hospitals, in the cohort's order.
        task: segmentation or classification.
        model: the network as a flat vector, with its initial values.
        mechanism: used by the server and the hospitals.
    """

    experiment: ResolvedExperiment
    facts: tuple[HospitalFacts, ...]
    task: Task
    model: FlatModel
    mechanism: Mechanism


@dataclass(frozen=True)
class ServerParts(Public):
    """A federation with remote hospitals, ready for its first round.

    Attributes:
        engine: reaches the hospitals.
        federation: the server.
    """

    engine: Engine
    federation: Federation

    def first_state(self) -> State:
        """The state before round one, from the network's present values."""
        return self.federation.first_state(self.model.values.clone())

    def describe_cohort(self) -> dict[str, Any]:
        """The content of cohort.json."""
        found = describe_facts("deployed", self.facts, self.experiment.cohort.classes)
        return found | {"simulated": False}

    def cohort_digest(self) -> str:
        """A digest of what is known of the data: a run is resumed on the same data only."""
        facts = json.dumps([one.to_dict() for one in self.facts], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def warnings(self, asked: Experiment) -> list[str]:
        """Warnings before training; `asked` is the experiment before it was resolved."""
        lines = about_hospitals(self.experiment.members)
        if asked.is_private and asked.privacy.delta is None:
            lines += about_delta(self.experiment.members)
        return lines

    def mixes_images(self) -> bool:
        """Whether the network's output for an image depends on the others of its batch."""
        return normalises_over_batch(self.model.module)


@dataclass(frozen=True)
class Parts(ServerParts):
    """A federation with all hospitals in this process.

    Attributes:
        cohort: checked.
        trainer: of all hospitals.
    """

    cohort: Cohort
    trainer: LocalTrainer

    def describe_cohort(self) -> dict[str, Any]:
        return describe(self.cohort, self.experiment.cohort.classes)

    def cohort_digest(self) -> str:
        return self.cohort.fingerprint()

    def warnings(self, asked: Experiment) -> list[str]:
        members = asked.participation.training(self.cohort.hospitals)
        return [*about_masks(members), *super().warnings(asked)]

    def mixes_images(self) -> bool:
        some = self.cohort.hospitals[0].test.images[:2].to(self.trainer.device)
        return self.trainer.mixes_images(some)
