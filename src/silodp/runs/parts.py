"""What a federation is made of: what follows from public facts, the server, hospitals of one process."""

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
from silodp.runs.warnings import about_masks, before_training
from silodp.tasks import Task


@dataclass(frozen=True)
class Public:
    """What the server and every hospital derive from the experiment and public facts, each for itself.

    Attributes:
        experiment: resolved: every number is said.
        facts: of all hospitals, in the cohort's order.
        task: what is learnt.
        model: the resident network, as a flat vector, with the values that it begins with.
        mechanism: of the server and the hospitals.
    """

    experiment: ResolvedExperiment
    facts: tuple[HospitalFacts, ...]
    task: Task
    model: FlatModel
    mechanism: Mechanism


@dataclass(frozen=True)
class ServerParts:
    """A federation whose hospitals are elsewhere, ready for its first round.

    Attributes:
        public: what it rests on.
        engine: what the federation reaches the hospitals through.
        federation: the server.
    """

    public: Public
    engine: Engine
    federation: Federation

    @property
    def experiment(self) -> ResolvedExperiment:
        return self.public.experiment

    @property
    def task(self) -> Task:
        return self.public.task

    @property
    def model(self) -> FlatModel:
        return self.public.model

    def first_state(self) -> State:
        """Before round one, from the network as it is now."""
        return self.federation.first_state(self.model.values.clone())

    def describe_cohort(self) -> dict[str, Any]:
        """What cohort.json says."""
        found = describe_facts("deployed", self.public.facts, self.experiment.cohort.classes)
        return found | {"simulated": False}

    def cohort_digest(self) -> str:
        """Changes with the data, as far as they are known here: a run resumes on the same only."""
        facts = json.dumps([one.to_dict() for one in self.public.facts], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def warnings(self, asked: Experiment) -> list[str]:
        """What whoever starts the run should know; `asked`: the experiment as it was given."""
        return before_training(asked, self.experiment)

    def mixes_images(self) -> bool:
        """Whether what the network makes of an image hangs on those beside it."""
        return normalises_over_batch(self.model.module)


@dataclass(frozen=True)
class Parts(ServerParts):
    """A federation and what it is made of, all in this process.

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
