"""Federations to measure with: tensors from a seed, so that every program trains the same steps.

The module itself imports only PyTorch, so that programs of other frameworks, in environments without silodp's
dependencies, can take images, network and loss from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from silodp.cohorts import Cohort
    from silodp.experiment import Experiment

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]

CLASSES = 8
LEARNING_RATE, CLIP_BOUND, NOISE_MULTIPLIER = 1e-3, 1.0, 0.5
MANY = 100_000
"""Rounds of an experiment, which is stopped earlier."""


@dataclass(frozen=True)
class Workload:
    """One round of a federation: every intermediary trains one epoch with a fresh Adam.

    Attributes:
        name: of the workload.
        network: "unet" for segmentation, or "cnn" for eight classes.
        width: features of the U-Net, or channels of the first layer of the CNN.
        side: height and width of images.
        hospitals: number of hospitals.
        intermediaries: of each hospital (v).
        images: of each intermediary, a multiple of the batch size.
        batch: images in a step.
        levels: how often the U-Net halves an image.
    """

    name: str
    network: Literal["unet", "cnn"]
    width: int
    side: int
    hospitals: int
    intermediaries: int
    images: int
    batch: int = 8
    levels: int = 4

    @property
    def parts(self) -> int:
        """Intermediaries of all hospitals, so the number of updates in a round."""
        return self.hospitals * self.intermediaries

    @property
    def steps(self) -> int:
        """Optimizer steps of a round of all hospitals."""
        return self.parts * (self.images // self.batch)

    @property
    def images_a_round(self) -> int:
        """Images in a round of all hospitals."""
        return self.parts * self.images

    @property
    def title(self) -> str:
        """A description for the heading of a table."""
        kind = f"U-Net {self.width}" if self.network == "unet" else "small CNN"
        return (
            f"{self.name}: {kind}, {self.side} x {self.side}, {self.hospitals} hospitals x "
            f"{self.intermediaries} intermediaries x {self.images} images, batch {self.batch}"
        )

    def with_steps(self, most: int) -> Self:
        """This workload with fewer intermediaries a hospital, so that a round has about `most` steps."""
        of_one = self.hospitals * (self.images // self.batch)
        return replace(self, intermediaries=max(1, min(self.intermediaries, most // of_one)))

    def to_dict(self) -> dict[str, Any]:
        """The arguments of `Workload`."""
        return asdict(self)

    def make_network(self, seed: int = 0) -> nn.Module:
        """The network, with weights from the seed; the CNN of width 8 on 28 x 28 has 7,528 parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            if self.network == "unet":
                from silodp.models.unet import UNet

                return UNet(1, 1, self.width, "group", self.levels)
            return nn.Sequential(
                nn.Conv2d(1, self.width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(self.width, 2 * self.width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(2 * self.width * (self.side // 4) ** 2, CLASSES),
            )  # fmt: skip

    @property
    def task(self) -> str:
        return "segmentation" if self.network == "unet" else "classification"

    @property
    def loss(self) -> Loss:
        """Loss of a batch from (logits, targets): silodp's soft Dice or cross-entropy."""
        from silodp.tasks import task_named

        return task_named(self.task).loss

    def draw(self, hospital: int) -> tuple[Tensor, Tensor]:
        """Images of a hospital and their targets: noise with a bright square, or with a brightness by class.

        Returns:
            (n, 1, side, side) float32, and (n, 1, side, side) float32 masks or (n,) int64 classes; n is
            intermediaries times images; those of an intermediary are consecutive.
        """
        rng = torch.Generator().manual_seed(hospital)
        count = self.intermediaries * self.images
        images = torch.randn(count, 1, self.side, self.side, generator=rng)
        if self.network == "cnn":
            labels = torch.arange(count) % CLASSES
            return images.add_(labels.view(-1, 1, 1, 1) / CLASSES), labels
        masks = torch.zeros_like(images)
        edge = self.side // 4
        for mask, (top, left) in zip(
            masks, torch.randint(0, self.side - edge, (count, 2), generator=rng).tolist(), strict=True
        ):
            mask[:, top : top + edge, left : left + edge] = 1
        return images.add_(masks), masks

    def divided(self, hospital: int) -> list[list[Batch]]:
        """The batches of each intermediary of a hospital, as views of the tensors of `draw`."""
        images, targets = (torch.split(one, self.batch) for one in self.draw(hospital))
        batches, each = list(zip(images, targets, strict=True)), self.images // self.batch
        return [batches[start : start + each] for start in range(0, len(batches), each)]

    def cohort(self) -> Cohort:
        """The cohort for silodp; the unused validation and test parts are a batch of the training images."""
        from silodp.cohorts import Cohort, Examples, HospitalData

        members = []
        for number in range(self.hospitals):
            every = Examples(*self.draw(number))
            some = every[slice(self.batch)]
            members.append(HospitalData(f"hospital-{number}", every, some, some))
        return Cohort(self.name, tuple(members))

    def experiment(self, settings: Mapping[str, Any]) -> Experiment:
        """For silodp: fixed C and v, Adam fresh in every round, seeded noise; changed by `settings`."""
        from silodp.experiment import Experiment

        return Experiment.build(
            {
                "name": f"bench-{self.name}",
                "task": self.task,
                "rounds": MANY,
                "local": {"learning_rate": LEARNING_RATE, "batch_size": self.batch, "state": "fresh"},
                "intermediaries": {"rule": "fixed", "count": self.intermediaries},
                "clipping": {"rule": "fixed", "bound": CLIP_BOUND},
                "privacy": {"noise_multiplier": NOISE_MULTIPLIER},
            },
            settings,
        )


TINY = Workload("tiny", "cnn", width=8, side=28, hospitals=20, intermediaries=10, images=8)
"""One short step an intermediary, which shows the overhead of a framework."""

UNET = Workload("unet", "unet", width=8, side=96, hospitals=6, intermediaries=4, images=16)
"""A network of half a million parameters, whose steps take a tenth of a second on one core."""

UNET_32 = Workload("unet-32", "unet", width=32, side=256, hospitals=6, intermediaries=15, images=16)
"""The paper's network, for a GPU."""

SMOKE = {
    "tiny": replace(TINY, hospitals=2, intermediaries=2),
    "unet": replace(UNET, width=2, side=16, hospitals=2, intermediaries=2, levels=1),
}
"""Smallest versions, to check that everything runs."""
