"""The model of a finished run as a module that takes plain images and prepares them itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silodp.cohorts.catalogue import Unreadable
from silodp.cohorts.cohort import Examples
from silodp.cohorts.kinds import CohortSettings, FileCohort, PreparedCohort, StoredCohort
from silodp.cohorts.shaping import prepare, seen_part
from silodp.cohorts.sources.folder import Folder
from silodp.errors import InputError
from silodp.experiment import ResolvedExperiment
from silodp.local.trainer import LocalTrainer
from silodp.runs.build import trainer_outside
from silodp.runs.fitting import load_values, network_for
from silodp.runs.folder import RunFolder, read_cohort_file, read_experiment
from silodp.runs.schema import CohortFile

AT_ONCE = 256  # images in a chunk
MODELS = {"last": "model.safetensors", "best": "model-best.safetensors"}


@dataclass(frozen=True)
class Preparation:
    """The preparation of images, as in training.

    Attributes:
        settings: channels and storage of the run's images, and their size if they are square.
        size: their height and width.
        scaled: whether images of 0…255 or 0…1 are scaled to −1…1; otherwise, as for a cohort from Python,
            numbers are used unchanged.
        recolours: whether colours become grey where the model takes grey, as the run's settings asked.
    """

    settings: FileCohort
    size: tuple[int, int]
    scaled: bool = True
    recolours: bool = False

    def __call__(self, images: NDArray[Any]) -> Tensor:
        """Prepares (n, c, h, w) bytes, or numbers 0…1, as (n, channels, *size) on the CPU.

        Raises:
            Unreadable: why the images do not fit.
        """
        channels = self.settings.channels
        if images.shape[1] != channels and not (self.scaled and (images.shape[1] == 1 or self.recolours)):
            raise Unreadable(
                f"{images.shape[1]} channels, and the model was trained on {channels}; "
                f"give images of {channels}"
            )
        if not self.resizes and images.shape[-2:] != self.size:
            found = " × ".join(map(str, images.shape[-2:]))
            raise Unreadable(f"an image of {found} pixels, and the model takes {self.sides}")
        if not self.scaled:
            return torch.tensor(images, dtype=torch.float32)
        if images.dtype != np.uint8 and not (images.size and images.min() >= 0 and images.max() <= 1):
            raise Unreadable(
                f"{images.dtype} numbers that are not all 0…1; give bytes 0…255 (uint8), or numbers 0…1"
            )
        return torch.tensor(prepare(images, self.settings))  # a copy: a picture's pixels may be read-only

    @property
    def resizes(self) -> bool:
        """Whether images of other sizes can be prepared: as in training, to a square only."""
        return self.scaled and self.settings.image_size is not None

    @property
    def sides(self) -> str:
        return " × ".join(map(str, self.size))

    @property
    def in_words(self) -> str:
        if not self.scaled:
            return "numbers as they are"
        return (
            f"{'resized to' if self.resizes else 'of'} {self.sides}, {self.settings.channels} "
            f"channel{'s' if self.settings.channels != 1 else ''}, scaled to −1…1"
        )


class Predictor(nn.Module):
    """A trained network with its preparation.

    Attributes:
        network: after training.
        classes: names of the classes or masks.
        target: "class" or "mask".
        files: SHA-256 of the files that the run read, where it read any.
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        preparation: Preparation,
        classes: Sequence[str],
        experiment: ResolvedExperiment,
        round_: int,
        files: frozenset[str] = frozenset(),
    ) -> None:
        """See `load`; `round_` is the round of the model."""
        super().__init__()
        self.network = trainer.model.module.eval()
        self.preparation = preparation
        self.classes = tuple(classes)
        self.experiment = experiment
        self.target: Literal["class", "mask"] = trainer.task.target
        self._trainer = trainer
        self.round = round_
        self.files = files

    def forward(self, images: ArrayOrTensor) -> Tensor:
        """Predicts on plain images, each independently of the others.

        Args:
            images: (h, w), (n, h, w) or (n, channels, h, w); bytes 0…255, or numbers 0…1.

        Returns:
            Probabilities on the CPU: (n, classes), or (n, masks, h, w) in the original size.
        """
        array = np.asarray(images.cpu() if isinstance(images, Tensor) else images)
        if array.ndim in (2, 3):
            array = array.reshape(-1, 1, *array.shape[-2:])
        if array.ndim != 4:
            raise InputError(f"images: shape {array.shape}; give (h, w), (n, h, w) or (n, channels, h, w)")
        try:
            return self.probabilities(array)
        except Unreadable as error:
            raise InputError(f"images: {error}") from None

    @torch.no_grad()
    def probabilities(self, images: NDArray[Any]) -> Tensor:
        """As `forward` for (n, channels, h, w); raises `Unreadable` where the images do not fit."""
        found = []
        for first in range(0, len(images), AT_ONCE):
            logits = self.logits(self.preparation(images[first : first + AT_ONCE]))
            found.append(self._probable(logits, images.shape[-2:]))
        return torch.cat(found)

    def logits(self, prepared: Tensor) -> Tensor:
        """Logits (n, …) on the CPU of prepared images, one at a time where the network mixes images."""
        device = self._trainer.device
        examples = Examples(prepared.to(device), torch.zeros(len(prepared), device=device))
        batch = "image" if self.experiment.evaluation.batch == "scan" else self.experiment.evaluation.batch
        return self._trainer.logits(self._trainer.model.values, examples, batch).cpu()

    def mixes_images(self, images: Tensor) -> bool:
        """Whether the prediction for an image depends on the others in its batch."""
        return self._trainer.mixes_images(images)

    def _probable(self, logits: Tensor, size: tuple[int, ...]) -> Tensor:
        if self.target == "class":
            return logits.double().softmax(1).float()
        probable = logits.sigmoid()
        if self.preparation.resizes:
            rows, columns = seen_part(size, self.preparation.settings)
            probable = probable[..., rows, columns]
        if tuple(probable.shape[-2:]) == tuple(size):
            return probable
        return nn.functional.interpolate(probable, tuple(size), mode="bilinear", antialias=True)


ArrayOrTensor = NDArray[Any] | Tensor


def load(
    run: str | Path,
    *,
    which: Literal["last", "best"] = "last",
    model: nn.Module | None = None,
    device: str = "auto",
) -> Predictor:
    """The model of a finished run, ready for images.

    Args:
        run: its folder.
        which: the last round's model, or the one best in validation (a choice that no ε covers).
        model: the network if it was given from Python; the weights are loaded into it, in place.
        device: "auto", "cpu" or "cuda".
    """
    folder = Path(run)
    experiment, facts = read_experiment(folder), read_cohort_file(folder)
    if model is None and experiment.model.kind == "custom":
        raise InputError(
            f"{folder}: the run was given its network from Python; load it there, with "
            "silodp.load(run, model=…), a network like it"
        )
    outputs = output_count(facts["target"], facts["classes"])
    network = model if model is not None else network_for(experiment, facts["channels"], outputs)
    load_values(network, folder / MODELS[which])
    summary = RunFolder(folder).summary()
    round_ = summary["test"][which]["round"] if summary else experiment.rounds
    classes = list(map(str, facts["classes"]))
    trainer = trainer_outside(network, experiment, device)
    files = frozenset(facts.get("files", {}).values())
    return Predictor(trainer, preparation_of(experiment, facts), classes, experiment, round_, files)


def preparation_of(experiment: ResolvedExperiment, facts: CohortFile) -> Preparation:
    """The preparation of the images of a run."""
    own, storage, (height, width) = experiment.cohort, facts["storage"], facts["size"]
    if isinstance(own, PreparedCohort):  # it keeps the name of its kind
        own = CohortSettings.of(kind=facts["cohort"])
    if not isinstance(own, FileCohort):
        own = Folder()
    form: dict[str, Any] = {
        "image_size": height if height == width else None,
        "channels": facts["channels"],
        "fit": facts.get("fit", own.fit),
    }
    if storage in ("uint8", "float16"):
        form["storage"] = storage
    scaled = storage == "uint8" or isinstance(experiment.cohort, StoredCohort)
    recolours = own.channels is not None
    return Preparation(own.model_copy(update=form), (height, width), scaled, recolours)


def output_count(target: str, classes: Sequence[object]) -> int:
    """Outputs of the network: one for each mask or class, of which there are at least two."""
    return max(2, len(classes)) if target == "class" else len(classes)
