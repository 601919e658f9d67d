"""One way to put a federation together: from an experiment, and from objects of your own, to its parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from silodp.cohorts import Cohort, load_cohort
from silodp.cohorts.catalogue import OnRead
from silodp.engines import Engine
from silodp.engines.in_process import InProcess
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.federation import Federation, State, build_federation, build_mechanism
from silodp.runs.fitting import named_network, outputs, refuse_misfit, refuse_other_kinds, refuse_other_targets
from silodp.hospital import Hospital
from silodp.local.trainer import LocalTrainer
from silodp.local.parameters import FlatModel
from silodp.server_optimizers import ServerOptimizer
from silodp.local.sketch import signs
from silodp.tasks import Task, task_named

EngineOf = Callable[[Sequence[Hospital]], Engine]
"""Makes an engine for the hospitals of a cohort, in its order; `InProcess` is one."""


@dataclass(frozen=True)
class Parts:
    """A federation and what it is made of, ready for its first round.

    Attributes:
        experiment: resolved: every number is said.
        cohort: checked.
        task: what is learnt.
        model: the resident network, as a flat vector.
        trainer: of all hospitals in this process.
        engine: what the federation reaches the hospitals through.
        federation: the server.
    """

    experiment: Experiment
    cohort: Cohort
    task: Task
    model: FlatModel
    trainer: LocalTrainer
    engine: Engine
    federation: Federation

    def first_state(self) -> State:
        """Before round one, from the network as it is now."""
        return self.federation.first_state(self.model.values.clone())


def build(
    experiment: Experiment,
    *,
    cohort: Cohort | None = None,
    model: nn.Module | None = None,
    server_optimizer: ServerOptimizer | None = None,
    engine: EngineOf | None = None,
    device: str = "auto",
    on_read: OnRead | None = None,
) -> Parts:
    """Brings the parts that an experiment names together, and checks that they fit; nothing is trained yet.

    Args:
        experiment: what to run.
        cohort: your own hospitals in place of `experiment.cohort`.
        model: your own network in place of `experiment.model`, which is copied; one output a class or mask.
        server_optimizer: your own in place of `experiment.server`.
        engine: makes the engine from the hospitals; default: all of them in this process.
        device: "auto", "cpu" or "cuda", where the network and the data will lie.
        on_read: called with how many files of how many are decoded, where a cohort is read the first time.
    """
    refuse_other_kinds(experiment, cohort, model)
    place = device_named(device)
    custom = {"cohort__kind": cohort, "model__kind": model, "server__optimizer": server_optimizer}
    if given := {field: "custom" for field, value in custom.items() if value is not None}:
        experiment = experiment.change(**given)
    checked = cohort.check(experiment.cohort.classes) if cohort is not None else None
    cohort = checked or load_cohort(experiment.cohort, on_read)
    members = cohort.hospitals[: experiment.participation.members]
    images = sum(len(hospital.train) for hospital in members)
    experiment = experiment.resolve(
        len(cohort.hospitals), torch.get_num_threads(), images, cohort.about.get("simulated")
    )
    task = task_named(experiment.task)
    refuse_other_targets(cohort, task)
    network = copy.deepcopy(model) if model is not None else named_network(experiment, cohort)
    flat = FlatModel(network, place)
    at_samples = None
    if experiment.privacy.level == "sample":
        from silodp.local.sample_level import sample_level

        at_samples = sample_level(experiment.privacy, flat, cohort.hospitals[0].train.images.shape[1:])
    trainer = LocalTrainer(flat, task, experiment.local, at_samples)
    refuse_misfit(trainer, cohort, experiment.intermediaries.min_samples, outputs(experiment, cohort))
    mechanism = build_mechanism(experiment, [len(hospital.train) for hospital in members])
    fixed = signs(len(flat), place)
    hospitals = [Hospital(data, trainer, mechanism, fixed, experiment.seed) for data in cohort.hospitals]
    reached = (engine or InProcess)(hospitals)
    federation = build_federation(experiment, cohort, reached, mechanism, flat.identity, server_optimizer)
    return Parts(experiment, cohort, task, flat, trainer, reached, federation)


def device_named(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {name}: choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch finds no GPU here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
