"""Builds a federation from an experiment, and from objects that replace what it names."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from torch import nn

from silodp.clipping import ClippingRule, RehearsedClipping
from silodp.cohorts import Cohort, load_cohort
from silodp.cohorts.catalogue import OnRead
from silodp.cohorts.cohort import HospitalData
from silodp.engines import Engine
from silodp.engines.in_process import InProcess
from silodp.engines.workers import Workers, workers_for
from silodp.errors import InputError, short
from silodp.experiment import Experiment, ResolvedExperiment
from silodp.facts import HospitalFacts, facts_of
from silodp.federation import build_federation
from silodp.hospital import Hospital
from silodp.intermediary import IntermediaryRule
from silodp.local.executors import executor_named
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.trainable import freeze_all_but
from silodp.local.trainer import LocalTrainer
from silodp.mechanism import Mechanism
from silodp.models.start import read_start
from silodp.runs.fitting import (
    network_for,
    outputs_of_facts,
    refuse_misfit,
    refuse_other_kinds,
    refuse_other_targets,
    with_start_values,
)
from silodp.runs.parts import Parts, Public
from silodp.runs.threads import threads
from silodp.server_optimizers import ServerOptimizer
from silodp.tasks import task_named

if TYPE_CHECKING:
    from silodp.runs.cluster import Cluster

log = logging.getLogger("silodp")

OnTrial = Callable[[str, float], None]
"""Called with the settings that a rehearsal tried, and their score."""
EngineOf = Callable[[Sequence[Hospital]], Engine]
"""Makes an engine for the hospitals of a cohort, in its order; `InProcess` is one."""


class Own(TypedDict, total=False):
    """What `build`, `train` and `resume` take in place of what the experiment names.

    Attributes:
        cohort: your own hospitals.
        model: your own network, which is copied; it needs one output a class or mask.
        server_optimizer: your own functions over plain state.
        clipping: a rule for C, a subclass of `ClippingRule`. Defining it makes it known by its name, so
            the run's experiment.toml names it, and `resume` finds it if it has been imported.
        intermediaries: a rule for v, a subclass of `IntermediaryRule`, in the same manner.
        engine: "in-process" (default); "flower" for a cluster, or a `runs.cluster.Cluster` that says how it
            is spread; or a function of your own that makes an engine from the hospitals.
        workers: processes in which the hospitals of "in-process" train, on a CPU: 1 (default), or 0 for one a
            core. It changes no number.
        device: "auto" (default), "cpu" or "cuda", where the network and the data will lie.
        on_read: called with how many files of how many are decoded, where a cohort is read the first time.
        on_trial: called with each trial of a rehearsal, where one is held (clipping.rule = rehearsed).
    """

    cohort: Cohort | None
    model: nn.Module | None
    server_optimizer: ServerOptimizer | None
    clipping: ClippingRule | None
    intermediaries: IntermediaryRule | None
    engine: EngineOf | Cluster | str | None
    workers: int
    device: str
    on_read: OnRead | None
    on_trial: OnTrial | None


def build(experiment: Experiment, **own: Unpack[Own]) -> Parts:
    """Builds the parts of an experiment and checks that they fit together; nothing is trained yet.

    Args:
        experiment: what to run.
        own: objects that replace what it names, see `Own`.
    """
    if unknown := own.keys() - Own.__annotations__.keys():
        raise TypeError(f"{min(unknown)!r}: build, train and resume take {', '.join(Own.__annotations__)}")
    with threads(experiment.threads):  # with others, PyTorch would start threads that are not used again
        return _build(experiment, own)


def _build(experiment: Experiment, own: Own) -> Parts:
    cohort, model = own.get("cohort"), own.get("model")
    refuse_other_kinds(experiment, cohort, model)
    device = own.get("device", "auto")
    place = device_named(device)
    experiment = with_origin(_with_given_objects(experiment, own))
    chosen = _engine_named(own.get("engine"))
    if not callable(chosen):
        experiment = chosen.prepared(experiment)
    checked = cohort.check(experiment.cohort.classes) if cohort is not None else None
    cohort = checked or load_cohort(experiment.cohort, own.get("on_read"))
    refuse_other_targets(cohort, task_named(experiment.task))
    facts = [facts_of(one, experiment) for one in cohort.hospitals]
    experiment = rehearsed(experiment, facts, device, own.get("on_trial"))
    public = derive(experiment, facts, place, model, cohort.about.get("simulated"))
    trainer = build_trainer(public, cohort.hospitals)
    engine: Engine
    if callable(chosen):
        hospitals = build_hospitals(public, trainer, cohort.hospitals)
        count = workers_for(own.get("workers", 1), public.experiment.threads or 1, len(hospitals), place)
        engine = Workers(hospitals, count) if chosen is InProcess and count > 1 else chosen(hospitals)
    else:
        engine = chosen.engine(public.experiment, cohort, place)
    federation = build_federation(
        public.experiment, public.facts, engine, public.mechanism, public.model.identity,
        own.get("server_optimizer"),
    )  # fmt: skip
    return Parts(**vars(public), engine=engine, federation=federation, cohort=cohort, trainer=trainer)


def derive(
    experiment: Experiment,
    facts: Sequence[HospitalFacts],
    place: torch.device,
    model: nn.Module | None = None,
    simulated: bool | None = None,
) -> Public:
    """Derives what is public from an experiment and the hospitals' facts; no image is needed.

    Guarantee: the result is the same on every machine, so that a hospital can check what the server derives.

    Args:
        experiment: with its rehearsal done.
        facts: of all hospitals of the cohort.
        place: device of the network.
        model: replaces the experiment's network; it is copied.
        simulated: as for `Experiment.resolve`.
    """
    members = experiment.participation.training(facts)
    resolved = experiment.resolve(
        len(facts), torch.get_num_threads(), sum(one.train for one in members), simulated
    )
    if model is not None:
        network = freeze_all_but(copy.deepcopy(model), resolved.model.trainable)
    else:
        network = network_for(resolved, facts[0].shape[0], outputs_of_facts(resolved, facts))
    flat = FlatModel(with_start_values(network, resolved.model), place)
    resolved = _with_bound(resolved, len(flat), len(members))
    mechanism = Mechanism.of(resolved, [one.train for one in members])
    return Public(resolved, tuple(facts), task_named(resolved.task), flat, mechanism)


def build_trainer(public: Public, hospitals: Sequence[HospitalData]) -> LocalTrainer:
    """Builds the trainer of these hospitals, and tries the network on their images."""
    resolved, flat = public.experiment, public.model
    at_samples = None
    if resolved.privacy.level == "sample":
        from silodp.local.sample_level import sample_level

        at_samples = sample_level(resolved.privacy, flat, hospitals[0].train.images.shape[1:])
    trainer = LocalTrainer(flat, public.task, resolved.local, at_samples, resolved.evaluation)
    classes = outputs_of_facts(resolved, public.facts)
    refuse_misfit(trainer, hospitals, resolved.intermediaries.min_samples, classes)
    return trainer


def build_hospitals(
    public: Public, trainer: LocalTrainer, hospitals: Sequence[HospitalData]
) -> list[Hospital]:
    """Builds hospitals in this process; they share the trainer's network."""
    seed = public.experiment.seed
    noise_seed = seed if public.experiment.privacy.reproducible else None
    some = hospitals[0].train[:2].to(trainer.device)
    executor = executor_named(public.experiment.executor, trainer, some)
    return [Hospital(data, trainer, public.mechanism, seed, noise_seed, executor) for data in hospitals]


def trainer_outside(
    network: nn.Module,
    experiment: ResolvedExperiment,
    device: str = "auto",
    local: LocalSettings | None = None,
) -> LocalTrainer:
    """Builds the trainer of a network outside of any federation, where nothing is noised.

    Args:
        network: moved to the device.
        experiment: of its run.
        device: "auto", "cpu" or "cuda".
        local: in place of the experiment's settings of local training.
    """
    model, task = FlatModel(network, device_named(device)), task_named(experiment.task)
    return LocalTrainer(model, task, local or experiment.local, None, experiment.evaluation)


def rehearsed(
    experiment: Experiment, facts: Sequence[HospitalFacts], device: str, on_trial: OnTrial | None
) -> Experiment:
    """The experiment with the results of a rehearsal, if it asks for one; only sizes and shapes are used."""
    clipping = experiment.clipping
    if not isinstance(clipping, RehearsedClipping) or clipping.noise or clipping.bound:
        return experiment
    from silodp.runs.rehearsal import rehearse

    sizes = [one.train for one in experiment.participation.training(facts)]
    on_trial = on_trial or partial(log.info, "rehearsal: %s: %.3f")
    found = rehearse(experiment, sizes, facts[0].shape, device, on_trial)
    return experiment.change(**{key.replace(".", "__"): value for key, value in found.items()})


def _with_bound(experiment: ResolvedExperiment, numbers: int, hospitals: int) -> ResolvedExperiment:
    """The experiment with the C that follows from its rehearsed noise, unless C is set."""
    clipping = experiment.clipping
    if not isinstance(clipping, RehearsedClipping) or clipping.bound is not None:
        return experiment
    expected = experiment.participation.expected_hospitals(hospitals)
    bound = clipping.bound_for(experiment.privacy.noise_multiplier, expected, numbers)
    return experiment.change(clipping__bound=float(f"{bound:.4g}"))


def with_origin(experiment: Experiment) -> Experiment:
    """The experiment with origin and digest of its start file; refuses another file than it names."""
    settings = experiment.model
    if settings.start is None:
        return experiment
    start = read_start(settings.start)
    if settings.start_digest not in (None, start.digest):
        raise InputError(
            f"model.start = {settings.start}: another file than the experiment was started with; restore it, "
            "or leave model.start_digest out"
        )
    origin = start.origin(settings.start_origin)
    if settings.start_origin == "generated" and origin != "generated":
        raise InputError(
            f"model.start_origin = generated: {settings.start} is not marked as generated; make it with "
            "`silodp pretrain`, or set model.start_origin=public if all that it was trained on is public"
        )
    place = str(Path(settings.start).expanduser().absolute()) if start.is_file else settings.start
    return experiment.change(model__start=place, model__start_origin=origin, model__start_digest=start.digest)


def _engine_named(engine: EngineOf | Cluster | str | None) -> EngineOf | Cluster:
    """The function or cluster that makes the engine."""
    if engine in (None, "in-process"):
        return InProcess
    if engine == "flower":
        from silodp.runs.cluster import Cluster

        return Cluster()
    if isinstance(engine, str):
        raise InputError(f"--engine {short(engine)}: choose in-process or flower")
    assert engine is not None
    return engine


def _with_given_objects(experiment: Experiment, own: Own) -> Experiment:
    """The experiment with the settings of the rules that were given, and "custom" for other objects."""
    changes: dict[str, Any] = {}
    for kind in (ClippingRule, IntermediaryRule):
        rule: Any = own.get(kind.section)
        if rule is None:
            continue
        if not isinstance(rule, kind):
            raise InputError(
                f"{kind.section}: {rule!r:.80} is not a rule; give an instance of {kind.__name__}"
            )
        for name, field in type(rule).model_fields.items():
            if getattr(rule, name) is None and field.default is not None:
                raise InputError(
                    f"{kind.section}.{name} = None: TOML cannot express that; make None its default"
                )
        changes[kind.section] = rule.model_dump(exclude_none=True)
    objects = {"cohort__kind": "cohort", "model__kind": "model", "server__optimizer": "server_optimizer"}
    changes |= {setting: "custom" for setting, name in objects.items() if own.get(name) is not None}
    return experiment.change(**changes) if changes else experiment


def device_named(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {name}: choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch finds no GPU here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
