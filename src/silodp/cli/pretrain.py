"""`silodp pretrain`: train a start for federations on generated images only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.options import Device
from silodp.cli.terminal import say
from silodp.errors import InputError


def pretrain(
    kind: Annotated[str, typer.Argument(help="What to make images of: pelvis, head, shapes or lesions.")],
    out: Annotated[Path, typer.Option(help="A new file, such as start.safetensors.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the network, such as features=16; repeatable."
        ),
    ] = None,
    image_size: Annotated[int, typer.Option(help="Pixels that the network will see.")] = 96,
    channels: Annotated[int, typer.Option(help="1, or 3 equal channels for colour images.")] = 1,
    images: Annotated[int, typer.Option(help="How many to draw; each is seen many times.")] = 4800,
    steps: Annotated[int, typer.Option(help="Of training; fewer are quicker and worse.")] = 5000,
    batch_size: Annotated[int, typer.Option(help="Images in a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW, at its highest.")] = 2e-3,
    seed: Annotated[int, typer.Option(help="Of all random numbers.")] = 0,
    device: Device = "auto",
) -> None:
    """Train a start on generated images, which belong to nobody and cost no ε. Use it as model.start."""
    from silodp.cli.display import stages
    from silodp.experiment import model_for
    from silodp.models.start import card, write_start
    from silodp.pretraining.kinds import generated
    from silodp.pretraining.recipe import Recipe
    from silodp.pretraining.recipe import pretrain as train
    from silodp.runs.build import device_named
    from silodp.runs.version import version

    if out.suffix != ".safetensors":
        raise InputError(f"--out {out}: give a name that ends in .safetensors")
    if out.exists():
        raise InputError(f"--out {out}: exists already; give a new file")
    for option, value in (("images", images), ("steps", steps), ("batch-size", batch_size)):
        if value < 8:
            raise InputError(f"--{option} {value}: give at least 8")
    task = generated(kind).task
    usual = {"affine": True} | ({"kind": "resnet", "features": 16} if task == "classification" else {})
    recipe = Recipe(
        kind, model_for(task, usual, changes or []), channels, image_size, images, steps, batch_size,
        learning_rate, seed,
    )  # fmt: skip
    with stages() as on_step:
        network, held_out = train(recipe, device_named(device), on_step)
    about = recipe.about() | {"held_out": held_out, "silodp": version()}
    write_start(out, network, about)
    out.with_suffix(".md").write_text(card(about), encoding="utf-8")
    figures = ", ".join(f"{name} {value:.3f}" for name, value in held_out.items())
    say(f"{out}: on held-out generated images, {figures}")
    say("use it: silodp run … --set model.start=" + str(out))
