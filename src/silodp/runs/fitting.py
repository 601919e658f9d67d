"""Checks that data, task and network fit together, before a run's folder is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from silodp.cohorts import Cohort
from silodp.cohorts.catalogue import first_line
from silodp.cohorts.cohort import HospitalData
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.facts import HospitalFacts
from silodp.local.parameters import Snapshot
from silodp.local.trainable import freeze_all_but
from silodp.local.trainer import LocalTrainer, network_input, normalises_over_batch
from silodp.models.kinds import ModelSettings
from silodp.models.start import begin_with, read_start
from silodp.tasks import Task, task_named


def refuse_other_kinds(experiment: object, cohort: object, model: object) -> None:
    """Refuses arguments of the wrong type, with what to give instead."""
    for name, value, kind, way_out in (
        ("experiment", experiment, Experiment, "load one with silodp.Experiment.load(NAME)"),
        ("cohort", cohort, Cohort, "make one with silodp.Cohort.from_tensors(…)"),
        ("model", model, nn.Module, "give a network, an instance of torch.nn.Module"),
    ):
        if not isinstance(value, kind) and not (value is None and name != "experiment"):
            raise InputError(f"{name}: {value!r:.80} is not a {kind.__name__}; {way_out}")


def named_network(experiment: Experiment, cohort: Cohort, run: Path | None = None) -> nn.Module:
    """The experiment's network for this cohort; parameters that do not train are frozen.

    Args:
        experiment: which network.
        cohort: its images decide the number of channels and outputs.
        run: folder of a run, for the values of its last round; None: the initial values.
    """
    channels = cohort.hospitals[0].train.images.shape[1]
    network = network_for(experiment, channels, outputs(experiment, cohort))
    if run is None:
        return with_start_values(network, experiment.model)
    return load_values(network, run / "model.safetensors")


def outputs_of_facts(experiment: Experiment, facts: Sequence[HospitalFacts]) -> int:
    """Number of masks, or of classes: as agreed, else as in the training labels."""
    return experiment.cohort.classes or max(one.outputs for one in facts)


def with_start_values(network: nn.Module, settings: ModelSettings) -> nn.Module:
    """Loads the start that the settings name, if any, into the network, in place; returns the network."""
    if settings.start is not None:
        begin_with(network, read_start(settings.start), new_head=settings.start_head == "new")
    return network


def network_for(experiment: Experiment, channels: int, outputs: int) -> nn.Module:
    """Makes the experiment's network; parameters that do not train are frozen."""
    from silodp.models import build_model

    network = build_model(experiment.model, channels, outputs, experiment.seed)
    return freeze_all_but(network, experiment.model.trainable)


def load_values(network: nn.Module, path: Path) -> nn.Module:
    """Loads the values of a run's model file into a network, in place; returns the network."""
    from safetensors.torch import load_file

    if not path.is_file():
        raise InputError(f"{path}: the run has no model yet; finish it with `silodp resume {path.parent}`")
    try:
        network.load_state_dict(load_file(path))
    except PermissionError:
        raise
    except Exception:  # safetensors and PyTorch each raise their own kinds on damaged files
        raise InputError(f"{path}: not a model of this experiment; restore it or train again") from None
    return network


def refuse_other_targets(cohort: Cohort, task: Task) -> None:
    """Refuses masks for classification, and classes for segmentation."""
    shape = tuple(cohort.hospitals[0].train.targets.shape)
    if (len(shape) == 4) != (task.target == "mask"):
        wanted = "(n, masks, h, w)" if task.target == "mask" else "(n,) classes"
        raise InputError(f"task = {task.name}: the targets have shape {shape}; it takes {wanted}")


def refuse_misfit(
    trainer: LocalTrainer, hospitals: Sequence[HospitalData], min_samples: int, classes: int
) -> None:
    """Refuses a network that cannot take the smallest batch, has the wrong output, or keeps state.

    It makes a forward pass in training mode and one in evaluation mode, and compares parameters and
    attributes.
    """
    task = trainer.task
    # Intermediaries have min_samples or more, and only hospitals that train have any.
    tried = [len(part) for hospital in hospitals for part in (hospital.validation, hospital.test)]
    fewest = min(2, min_samples, *tried)  # which BatchNorm may refuse
    examples = hospitals[0].train[:fewest].to(trainer.device)
    module = trainer.model.module
    before = Snapshot(module)
    try:
        for mode in (False, True):
            module.train(mode)
            shape = tuple(trainer.forward(network_input(examples.images)).shape)
    except InputError:
        raise
    except Exception as error:  # whatever a user's own network raises
        size = tuple(examples.images.shape[1:])
        why = first_line(error)
        raise InputError(
            f"model: it cannot train on {len(examples)} images of shape {size} at a time ({why}); "
            "give images of another size (cohort.image_size), or choose another network (model.kind)"
        ) from None
    _refuse_alone(trainer, hospitals[0])
    if (changed := before.changed()) is not None:
        raise InputError(
            f"model: a forward pass changes {changed!r}; what it keeps would go from one hospital into the "
            "next, neither clipped nor noised; compute it anew from each batch, or make it trainable"
        )
    if task.target == "mask":
        masks = tuple(examples.targets.shape)
        fits, wanted = shape == masks, f"the masks' {masks}"
    else:
        fits, wanted = len(shape) == 2 and shape[1] >= classes, f"(n, {classes})"
    if not fits:
        raise InputError(f"model: its output has shape {shape}; give it an output of shape {wanted}")


def _refuse_alone(trainer: LocalTrainer, hospital: HospitalData) -> None:
    """Refuses a network that cannot take one image, if models are tested on one image at a time."""
    batch, module = trainer.evaluation.batch, trainer.model.module
    if batch == "hospital" or not normalises_over_batch(module):
        return
    image = hospital.train[:1].to(trainer.device).images
    module.eval()
    try:
        trainer.forward(network_input(image))
    except Exception as error:  # BatchNorm over a single number, or whatever a user's own network raises
        why = first_line(error)
        raise InputError(
            f"evaluation.batch = {batch}: the network cannot take one image at a time ({why}); "
            "set model.norm=group, larger images, or evaluation.batch=hospital"
        ) from None


def outputs(experiment: Experiment, cohort: Cohort) -> int:
    """Number of masks, or of classes: as agreed, else as in the training labels."""
    counted = (task_named(experiment.task).outputs(one.train.targets) for one in cohort.hospitals)
    return experiment.cohort.classes or max(counted)
