"""Which settings of an experiment go together.

`Experiment` calls it whenever one is built, so a contradiction is refused before anything is read or spent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from silodp.errors import InputError
from silodp.models.kinds import OwnNetwork
from silodp.models.norm import NORMS
from silodp.tasks import task_named

if TYPE_CHECKING:
    from silodp.experiment import Experiment

Demand = tuple[str, Any, bool, object, str]
"""A setting, its value, whether that fits, a value that would, and the reason."""


def refuse_norm_readers(experiment: Experiment, because: str) -> None:
    """Refuses rules that read un-noised norms, where hospitals are outside the server's process.

    Args:
        experiment: to check.
        because: the rest of the sentence, with the way out.
    """
    for name, rule in (("intermediaries", experiment.intermediaries), ("clipping", experiment.clipping)):
        if rule.reads_norms:
            raise InputError(f"{name}.rule = {rule.rule}: it reads un-noised norms, which {because}")


def refuse_incompatible(experiment: Experiment) -> None:
    """Checks that the settings do not contradict each other.

    Raises:
        ValueError: for the first pair that does, with the way out.
    """
    privacy, task = experiment.privacy, task_named(experiment.task)
    if privacy.level == "sample":
        _refuse("privacy.level = sample", _of_sample_level(experiment))
    elif not experiment.clipping.bounded and privacy.noise_multiplier > 0:
        raise ValueError(
            f"clipping.rule = {experiment.clipping.rule} with privacy.noise_multiplier = "
            f"{privacy.noise_multiplier}: noise protects nobody without a bound; set clipping.rule, or "
            "privacy.noise_multiplier=0"
        )
    if experiment.clipping.rule == "rehearsed" and privacy.noise_multiplier == 0:
        raise ValueError(
            "clipping.rule = rehearsed with privacy.noise_multiplier = 0: there is no noise to bear; set "
            "clipping.rule=none"
        )
    if experiment.budget is not None and experiment.budget.sets_noise:
        _refuse("budget.sets_noise = true", _of_noise_by_budget(experiment))
    if privacy.noise == "shared":
        _refuse("privacy.noise = shared", _of_shared_noise(experiment))
    for section, own in (("cohort", experiment.cohort), ("model", experiment.model)):
        if own.task not in (None, task.name):
            raise ValueError(f"task = {task.name} with {section}.kind = {own.kind}: set task={own.task}")
    if experiment.cohort.classes is not None and task.target == "mask":
        raise ValueError(
            f"cohort.classes = {experiment.cohort.classes} with task = {task.name}: its images have masks; "
            "leave it out"
        )


def _refuse(because: str, demands: tuple[Demand, ...]) -> None:
    """Raises ValueError for the first demand that is not met; `because` is the setting that makes them."""
    for setting, value, fits, instead, why in demands:
        if not fits:
            raise ValueError(f"{setting} = {value} with {because}: {why}; set {setting}={instead}")


def _of_noise_by_budget(experiment: Experiment) -> tuple[Demand, ...]:
    """The noise can follow from the budget only if v does not follow from the noise."""
    parts, private = experiment.intermediaries, experiment.privacy
    level, circular = private.level, "v would follow from the noise"
    given = parts.asked is not None and not parts.reads_norms
    if "noise_multiplier" in private.model_fields_set:
        raise ValueError(
            f"privacy.noise_multiplier = {private.noise_multiplier:g} with budget.sets_noise = true: "
            "the budget gives it; leave one of them out"
        )
    return (
        ("intermediaries.rule", parts.rule, given, "fixed", circular),
        ("privacy.level", level, level == "client", "client", "hospitals noise their own steps there"),
    )


def _of_sample_level(experiment: Experiment) -> tuple[Demand, ...]:
    """DP-SGD at the hospitals protects single images: nothing else may mix or clip them or draw hospitals."""
    parts, clipping, drawn = experiment.intermediaries, experiment.clipping, experiment.participation
    model, whole = experiment.model, "hospitals are not split"
    norm = model.norm if isinstance(model, OwnNetwork) else None
    mixes = norm is not None and NORMS[norm].mixes_images
    everyone = drawn.accounted_as(stateful=False) == "all"
    return (
        ("model.norm", norm, not mixes, "group", "it mixes images"),
        ("intermediaries.rule", parts.rule, parts.rule == "fixed", "fixed", whole),
        ("intermediaries.count", parts.asked, parts.asked == 1, 1, whole),
        ("clipping.rule", clipping.rule, not clipping.bounded, "none", "gradients are clipped"),
        ("participation.rule", drawn.rule, everyone, "all", "one that is away adds no noise"),
    )


def _of_shared_noise(experiment: Experiment) -> tuple[Demand, ...]:
    """With shared noise no un-noised number may leave a hospital, and every member's share is needed."""
    parts, clipping, drawn = experiment.intermediaries, experiment.clipping, experiment.participation
    everyone = drawn.accounted_as(stateful=False) == "all"
    level, unread = experiment.privacy.level, "norms do not leave a hospital that noises its contribution"
    return (
        ("privacy.noise_multiplier", 0, experiment.is_private, 0.5, "there is nothing to share"),
        ("privacy.level", level, level == "client", "client", "hospitals noise their own steps there"),
        ("participation.rule", drawn.rule, everyone, "all", "who is not drawn adds no share"),
        ("clipping.rule", clipping.rule, not clipping.reads_norms, "quantile", unread),
        ("intermediaries.rule", parts.rule, not parts.reads_norms, "closed-form", unread),
        ("diagnostics", "true", not experiment.diagnostics, "false", unread),
    )
