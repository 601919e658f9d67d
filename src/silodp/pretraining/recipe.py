"""How a start is made: trained on generated images, each seen in a new disguise every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from silodp.models.kinds import ModelSettings
from silodp.models.resnet import ResNet
from silodp.pretraining.kinds import draw_images, generated
from silodp.pretraining.randomise import randomise
from silodp.tasks import Task, task_named

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

OnStep = Callable[[str, int, int], None]
"""Told what is going on, and how far it is."""

HELD_OUT = 0.05  # of the patients, for the figure in the start's card
WARM_UP = 0.2  # of the steps
SEEN = 4  # pixels of what is looked for, for an image to be of its class
RARE = 5.0  # how much more a place counts that shows it, since few do


@dataclass(frozen=True)
class Recipe:
    """All that a start follows from.

    Attributes:
        kind: of generated images, which have a task.
        model: the network's settings.
        channels: of its images; several are all alike.
        image_size: pixels that the network sees.
        images: how many are drawn; each is seen many times.
        steps: of AdamW, with one rise and fall of the learning rate.
        batch_size: images in a step.
        learning_rate: at its highest.
        seed: of all chance.
    """

    kind: str
    model: ModelSettings
    channels: int = 1
    image_size: int = 96
    images: int = 4800
    steps: int = 5000
    batch_size: int = 32
    learning_rate: float = 2e-3
    seed: int = 0

    def about(self) -> dict[str, Any]:
        """For the start's file and card."""
        own = {name: value for name, value in vars(self).items() if name != "model"}
        made = {"made_from": generated(self.kind).about, "task": generated(self.kind).task}
        return {"origin": "generated", **made, **own} | {
            "model": self.model.model_dump(
                mode="json", exclude_none=True, exclude={"trainable", "start_head"}
            )
        }


@dataclass(frozen=True)
class Pretrained:
    """A trained start, and what it scores on generated images that it has not seen, in new disguises."""

    network: nn.Module
    held_out: dict[str, float] = field(default_factory=dict)


def pretrain(recipe: Recipe, device: torch.device, on_step: OnStep) -> Pretrained:
    """Draws the images, trains the network on `device`, and tries it on held-out ones."""
    import torch

    from silodp.models import build_model
    from silodp.noise.streams import generator

    kind, size = generated(recipe.kind), recipe.image_size
    task, outputs = task_named(kind.task), 1 if kind.task == "segmentation" else 2
    images, masks = draw_images(kind, recipe.images, size, recipe.seed, lambda *far: on_step("drawing", *far))
    images, masks = images.expand(-1, recipe.channels, -1, -1).to(device), masks.to(device)
    kept = max(1, round(len(images) * (1 - HELD_OUT)))
    network = build_model(recipe.model, recipe.channels, outputs, recipe.seed).to(device)
    lesson = Lesson(network, task)
    optimizer = torch.optim.AdamW(lesson.parameters(), recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=recipe.steps, pct_start=WARM_UP
    )
    chance = generator(device, recipe.seed, "pretraining")
    network.train()
    for step in range(1, recipe.steps + 1):
        index = torch.randint(kept, (recipe.batch_size,), generator=chance, device=device)
        seen, found = randomise(images[index].float() / 255, masks[index], kind.style, size, chance)
        optimizer.zero_grad(set_to_none=True)
        lesson.loss(seen, found).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == recipe.steps:
            on_step("training", step, recipe.steps)
    network.eval()
    chance = generator(device, recipe.seed, "held out")
    answers, truths = [], []
    with torch.no_grad():
        for index in torch.split(torch.arange(kept, len(images), device=device), 64):
            seen, found = randomise(images[index].float() / 255, masks[index], kind.style, size, chance)
            answers.append(lesson.logits(seen).cpu())
            truths.append(lesson.targets(found).cpu())
    held_out = task.quick_metrics(torch.cat(answers), torch.cat(truths)) if answers else {}
    return Pretrained(network.cpu().float(), held_out)


class Lesson:
    """What a network is taught: the task itself, and to classify also where the reason is.

    A class alone hardly says which few of ten thousand pixels it is about; the generator knows them, so a
    layer on the network's last maps, which is thrown away afterwards, learns to point at them.
    """

    def __init__(self, network: nn.Module, task: Task) -> None:
        from torch import nn

        self.network, self.task = network, task
        self.pointer: nn.Conv2d | None = None
        if isinstance(network, ResNet):
            device = network.head.weight.device
            self.pointer = nn.Conv2d(network.head.in_features, 1, 1).to(device)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.network.parameters(), *(self.pointer.parameters() if self.pointer else ())]

    def targets(self, masks: Tensor) -> Tensor:
        """The masks themselves, or (n,) whether an image shows any of what is looked for."""
        return masks if self.task.target == "mask" else (masks.sum((1, 2, 3)) >= SEEN).long()

    def logits(self, images: Tensor) -> Tensor:
        """In single precision; on a GPU computed in bfloat16 where autocast allows."""
        with _autocast(images):
            return self.network(_channels_last(images)).float()  # type: ignore[no-any-return]

    def loss(self, images: Tensor, masks: Tensor) -> Tensor:
        if self.pointer is None or not isinstance(self.network, ResNet):
            return self.task.loss(self.logits(images), self.targets(masks))
        from torch.nn.functional import adaptive_max_pool2d, binary_cross_entropy_with_logits

        with _autocast(images):
            maps = self.network.maps(_channels_last(images))
            logits, pointed = self.network.classify(maps).float(), self.pointer(maps).float()
        where = adaptive_max_pool2d(masks, pointed.shape[-2:])
        rare = pointed.new_tensor(RARE)
        return self.task.loss(logits, self.targets(masks)) + binary_cross_entropy_with_logits(
            pointed, where, pos_weight=rare
        )


def _autocast(images: Tensor) -> torch.autocast:
    import torch

    device = images.device.type
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def _channels_last(images: Tensor) -> Tensor:
    import torch

    return images.contiguous(memory_format=torch.channels_last)
