"""A hospital's own fine-tuning of the released model, on its own images; nothing of it goes back.

Guarantee: what is made here stays in the hospital's folder. It is no release, so it costs no ε; and since it
has learnt from that hospital's images without noise, it is not to be passed on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from silodp.cohorts import load_cohort
from silodp.cohorts.cohort import Cohort, HospitalData
from silodp.cohorts.kinds import DeployedCohort
from silodp.errors import InputError, did_you_mean
from silodp.files import private_folder, read_plain, to_json, write_atomically, write_json
from silodp.local.executors import executor_named
from silodp.local.jobs import draw_job
from silodp.local.optimizers import SGD
from silodp.local.trainer import LocalTrainer
from silodp.noise.streams import derive_seed, generator
from silodp.runs.build import trainer_outside
from silodp.runs.fitting import load_values, named_network, with_start_values
from silodp.runs.folder import RunFolder, read_experiment, refuse_personal
from silodp.runs.places import PERSONAL
from silodp.tasks.scores import Scores, score

OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Tuning:
    """How a hospital trains on its own: all parameters, with SGD.

    Attributes:
        epochs: over its training images.
        learning_rate: of its steps.
        batch_size: images in a step.
    """

    epochs: int = 30
    learning_rate: float = 0.02
    batch_size: int = 16

    @property
    def local(self) -> SGD:
        return SGD(learning_rate=self.learning_rate, batch_size=self.batch_size, state="fresh")


@dataclass(frozen=True)
class Personal:
    """Three models on one hospital's own test images.

    Attributes:
        hospital: its name.
        scores: of «alone» (the same training from where the federation started), «released» and «personal».
        tensors: of the personal model, by the network's own names.
    """

    hospital: str
    scores: dict[str, Scores]
    tensors: dict[str, Tensor]


def personalise(
    run: Path,
    hospital: str,
    tuning: Tuning | None = None,
    *,
    cohort: Cohort | None = None,
    model: nn.Module | None = None,
    device: str = "auto",
    on_step: OnStep = lambda what, done, of: None,
) -> Personal:
    """Fine-tunes the released model of a run for one of its hospitals; writes nothing.

    Args:
        run: the folder of a finished run.
        hospital: which one's images to train on.
        tuning: how.
        cohort: the hospitals, where they were given from Python.
        model: the network, where it was given from Python; it is copied.
        device: "auto", "cpu" or "cuda".
        on_step: told which model is trained, and how many of its epochs are done.
    """
    refuse_personal(run, "give the folder of the run")
    experiment, tuning = read_experiment(run), tuning or Tuning()
    if cohort is None:
        if isinstance(experiment.cohort, DeployedCohort):
            raise InputError("--data: the run's images are at the hospitals; give this hospital's own files")
        cohort = load_cohort(experiment.cohort)
    data, known = _named(cohort, hospital), RunFolder(run).cohort()
    if known is not None and known["target"] == "class":  # this hospital's labels need not show every class
        classes = max(2, len(known["classes"]))
        settings = experiment.cohort.model_copy(update={"classes": classes})
        experiment = experiment.model_copy(update={"cohort": settings})
    scores, tensors = {}, {}
    for name in ("alone", "released", "personal"):
        if model is None:
            network = named_network(experiment, cohort)
        else:
            network = with_start_values(copy.deepcopy(model), experiment.model)
        if name != "alone":
            load_values(network, run / "model.safetensors")
        network.requires_grad_(True)  # at home nothing is noised, so nothing need be left out
        trainer = trainer_outside(network, experiment, device, tuning.local)
        values = trainer.model.values.clone()
        if name != "released":
            values = _trained(trainer, data, experiment.seed, tuning, name, on_step)
        scores[name] = _scored(trainer, values, data, experiment.seed)
        tensors[name] = trainer.model.named_tensors(values)
    return Personal(hospital, scores, tensors["personal"])


def write_personal(personal: Personal, run: Path, tuning: Tuning, folder: Path) -> None:
    """The hospital's own folder, its owner's alone: the model, its figures, and what `predict` needs."""
    from safetensors.torch import save

    private_folder(folder)
    note = "learnt from one hospital's images without noise: not to be passed on"
    about = {"silodp": to_json({"personal": note})}
    write_atomically(folder / "model.safetensors", save(personal.tensors, about))
    for name in ("experiment.toml", "cohort.json"):  # so that `silodp predict` takes the folder like a run's
        write_atomically(folder / name, read_plain(run / name))
    record: dict[str, Any] = {
        "hospital": personal.hospital,
        "run": str(run.absolute()),
        "tuning": vars(tuning),
        "test": {
            name: {"metrics": one.values, "intervals": one.intervals, "images": one.images}
            for name, one in personal.scores.items()
        },
        "note": note,
    }
    write_json(folder / PERSONAL, record)


def _named(cohort: Cohort, name: str) -> HospitalData:
    names = [hospital.name for hospital in cohort.hospitals]
    if name not in names:
        raise InputError(
            f"--hospital {name}: the run has {', '.join(names[:30])}" + did_you_mean(name, names)
        )
    return cohort.hospitals[names.index(name)]


def _trained(
    trainer: LocalTrainer, data: HospitalData, seed: int, tuning: Tuning, name: str, on_step: OnStep
) -> Tensor:
    values, state = trainer.model.values.clone(), trainer.fresh_state()
    examples = data.train.to(trainer.device)
    executor = executor_named("auto", trainer, examples[:2])
    for epoch in range(1, tuning.epochs + 1):
        rng = generator(trainer.device, seed, "personal", data.name, epoch)
        (done,) = executor.run([draw_job(values, examples, state, tuning.local, rng)])
        if done.error is not None:
            raise done.error
        values = done.values.clone()
        on_step(name, epoch, tuning.epochs)
    return values


def _scored(trainer: LocalTrainer, values: Tensor, data: HospitalData, seed: int) -> Scores:
    examples = data.test.to(trainer.device)
    logits = trainer.logits(values, examples).cpu()
    resampling = derive_seed(seed, "bootstrap", data.name)
    return score(trainer.task, logits, examples.targets.cpu(), examples.patients, resampling)
