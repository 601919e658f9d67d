"""Trains a start on generated images, with new random augmentation each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, binary_cross_entropy_with_logits

from silodp.models import build_model
from silodp.models.kinds import ModelSettings
from silodp.models.resnet import ResNet
from silodp.noise.streams import derive_seed, generator
from silodp.pretraining.kinds import draw_images, generated
from silodp.pretraining.randomise import randomise
from silodp.tasks import Task, task_named

OnStep = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""

HELD_OUT = 0.05  # share of the patients, for the test in the start's card
WARM_UP = 0.2  # share of the steps
VISIBLE = 4  # pixels of the target from which on an image is of its class
RARE = 5.0  # weight of locations that show the target, since few do


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a start.

    Attributes:
        kind: of generated images, which have a task.
        model: settings of the network.
        channels: of its images; all are equal.
        image_size: height and width that the network sees.
        images: how many are drawn; each is used many times.
        steps: of AdamW with a one-cycle learning rate.
        batch_size: images in a step.
        learning_rate: the peak.
        seed: of all random numbers.
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
        """What the start's file and card say about it."""
        own = {name: value for name, value in vars(self).items() if name != "model"}
        made = {"made_from": generated(self.kind).about, "task": generated(self.kind).task}
        return {"origin": "generated", **made, **own} | {
            "model": self.model.model_dump(
                mode="json", exclude_none=True, exclude={"trainable", "start_head"}
            )
        }


def pretrain(recipe: Recipe, device: torch.device, on_step: OnStep) -> tuple[nn.Module, dict[str, float]]:
    """Draws the images, trains the network on `device`, and tests it on held-out images.

    Returns:
        The network, on the CPU, in float32; and its metrics on held-out generated images, which are augmented
        like those it was trained on.
    """
    kind, size = generated(recipe.kind), recipe.image_size
    task, outputs = task_named(kind.task), 1 if kind.task == "segmentation" else 2
    images, masks = draw_images(kind, recipe.images, size, recipe.seed, lambda *far: on_step("drawing", *far))
    images, masks = images.expand(-1, recipe.channels, -1, -1).to(device), masks.to(device)
    kept = max(1, round(len(images) * (1 - HELD_OUT)))
    network = build_model(recipe.model, recipe.channels, outputs, recipe.seed).to(device)
    objective = Objective(network, task, recipe.seed)
    optimizer = torch.optim.AdamW(objective.parameters(), recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=recipe.steps, pct_start=WARM_UP
    )
    rng = generator(device, recipe.seed, "pretraining")
    network.train()
    for step in range(1, recipe.steps + 1):
        index = torch.randint(kept, (recipe.batch_size,), generator=rng, device=device)
        seen, found = randomise(images[index].float() / 255, masks[index], kind.style, size, rng)
        optimizer.zero_grad(set_to_none=True)
        objective.loss(seen, found).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == recipe.steps:
            on_step("training", step, recipe.steps)
    network.eval()
    rng = generator(device, recipe.seed, "held out")
    answers, truths = [], []
    with torch.no_grad():
        for index in torch.split(torch.arange(kept, len(images), device=device), 64):
            seen, found = randomise(images[index].float() / 255, masks[index], kind.style, size, rng)
            answers.append(objective.outputs(seen)[0].cpu())
            truths.append(objective.targets(found).cpu())
    held_out = task.quick_metrics(torch.cat(answers), torch.cat(truths)) if answers else {}
    return network.cpu().float(), held_out


class Objective:
    """The task's own loss and, for classification with a ResNet, an auxiliary loss on where the target is.

    A class says little about which few of ten thousand pixels it depends on. The generator knows them, so an
    extra layer on the last feature maps, which is discarded afterwards, learns to locate them.
    """

    def __init__(self, network: nn.Module, task: Task, seed: int) -> None:
        self.network, self.task = network, task
        self.locator: nn.Conv2d | None = None
        if isinstance(network, ResNet):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed(seed, "locator"))
                self.locator = nn.Conv2d(network.head.in_features, 1, 1).to(network.head.weight.device)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.network.parameters(), *(self.locator.parameters() if self.locator else ())]

    def targets(self, masks: Tensor) -> Tensor:
        """The masks themselves, or (n,) classes: whether an image shows the target."""
        return masks if self.task.target == "mask" else (masks.sum((1, 2, 3)) >= VISIBLE).long()

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits of the task, and of the location if it is learnt; float32, in bfloat16 autocast on a GPU."""
        device = images.device.type
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            if self.locator is None or not isinstance(self.network, ResNet):
                return self.network(images).float(), None
            maps = self.network.maps(images)
            return self.network.classify(maps).float(), self.locator(maps).float()

    def loss(self, images: Tensor, masks: Tensor) -> Tensor:
        logits, located = self.outputs(images)
        loss = self.task.loss(logits, self.targets(masks))
        if located is None:
            return loss
        where, weight = adaptive_max_pool2d(masks, located.shape[-2:]), located.new_tensor(RARE)
        return loss + binary_cross_entropy_with_logits(located, where, pos_weight=weight)
