"""What an attacker may see of a round: the update of one small batch, bare or released, or a hospital's.

The attacked batch is the same in every view and the best case for the attacker: one plain gradient step, the
contributions of all others known and subtracted, nothing lost to clipping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from silodp.cohorts.cohort import Cohort, Examples, HospitalData
from silodp.experiment import Experiment
from silodp.local.clip import norm
from silodp.local.parameters import FlatModel
from silodp.local.trainer import network_input
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, RoundPlan
from silodp.noise.streams import seeded_noise
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.runs.build import build
from silodp.tasks import Task


@dataclass(frozen=True)
class View:
    """What an attacker sees of the round.

    Attributes:
        name: short, as in attack.json.
        words: description.
        model: the experiment's own network, or the easily inverted one.
        update: Δ as the attacker knows it, from the attacked batch.
        epsilon: for a hospital and for an intermediary, of this one round; infinite where nothing is added.
    """

    name: str
    words: str
    model: FlatModel
    update: Callable[[Examples], Tensor]
    epsilon: tuple[float, float] = (float("inf"), float("inf"))


def views_of(
    experiment: Experiment,
    easy: FlatModel,
    own: FlatModel,
    task: Task,
    data: HospitalData,
    v: int,
    delta: float,
) -> list[View]:
    """The control, then the experiment's own network, then both under noise."""
    z = experiment.privacy.noise_multiplier
    views = [
        View("control", "one batch, no noise, open network", easy, partial(batch_step, easy, task)),
        View("own network", "one batch, no noise", own, partial(batch_step, own, task)),
        View(
            "whole hospital", "a hospital's local training, no noise", own,
            partial(whole_hospital, experiment, own, data),
        ),
    ]  # fmt: skip
    split = {"DP-FedAvg": (1, "one batch")}
    if v > 1:
        split["intermediaries"] = v, f"one batch in all {v} parts"
    for model, prefix, where in ((easy, "", "open network"), (own, "own ", "own network")) if z else ():
        for name, (parts, batch) in split.items():
            update = partial(noised_step, experiment, model, task, parts)
            epsilon = gaussian_epsilon(parts / z, delta), gaussian_epsilon(1 / z, delta)
            views.append(View(f"{prefix}{name}", f"{batch}, z = {z:g}, {where}", model, update, epsilon))
    return views


def batch_step(model: FlatModel, task: Task, batch: Examples) -> Tensor:
    """Δ of one plain gradient step with rate 1: an attacker knows the rate, so it does not matter."""
    model.module.train()
    model.gradients.zero_()
    task.loss(model.module(network_input(batch.images)), batch.targets).backward()  # type: ignore[no-untyped-call]
    return -model.gradients.clone()


def whole_hospital(experiment: Experiment, model: FlatModel, data: HospitalData, _: Examples) -> Tensor:
    """Δ of a hospital's real local training: all images, every step, its own optimizer."""
    training = experiment.model_dump(include={"task", "seed", "threads", "executor", "local"})
    alone = Experiment.build(
        training | {
            "model": {"kind": "custom", "trainable": experiment.model.trainable},
            "cohort": {"kind": "custom", "classes": experiment.cohort.classes},
            "privacy": {"noise_multiplier": 0.0}, "clipping": {"rule": "none"},
            "intermediaries": {"rule": "fixed"},
        }
    )  # fmt: skip
    parts = build(
        alone, cohort=Cohort("victim", (data,)), model=model.module, device=model.values.device.type
    )
    plan = RoundPlan(1, parts.model.values.clone(), 1, float("inf"))
    (answer,) = parts.engine.train(plan, [data.name])
    return parts.federation.mechanism.opened(plan, answer.numbers)[0].to(plan.parameters.dtype)


def noised_step(experiment: Experiment, model: FlatModel, task: Task, v: int, batch: Examples) -> Tensor:
    """Δ of `batch_step` after the mechanism."""
    return released(experiment, batch_step(model, task, batch), v)


def released(experiment: Experiment, update: Tensor, v: int) -> Tensor:
    """The update after the mechanism, with C equal to its norm and the noise of the experiment.

    With v above one each of the v intermediaries holds these images.
    """
    bound = float(norm(update))
    private = experiment.change(
        clipping={"rule": "fixed", "bound": bound}, participation={"rule": "all"}, privacy__noise="central",
        privacy__may_stay_away=0,
    )  # fmt: skip
    mechanism = Mechanism.of(private, [len(update)])
    plan = RoundPlan(1, update, v, bound)
    noise = seeded_noise(experiment.seed, 1)
    numbers, _ = mechanism.encode(plan, (update.clone() for _ in range(v)))
    answer = Contribution("victim", 1, plan.digest, numbers)
    return mechanism.decode(plan, ["victim"], [answer], noise)[0].mean * v
