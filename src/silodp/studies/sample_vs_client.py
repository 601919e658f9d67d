"""Section 2.3: sample-level DP beside client-level DP at the same noise multiplier z.

1. Test Dice, and ε for a hospital, an intermediary and an image, of each and of training without privacy.
2. The drift ‖θ noisy − θ clean‖ of a model from noise-free training with the same clipping, batches and
   start: of DP-SGD over local steps, of DP-FedAvg over rounds, each beside the √t law for noise that adds up.

A small U-Net (group norm, since BatchNorm mixes images) with local SGD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from silodp.errors import InputError
from silodp.studies.output import select
from silodp.studies.sample_vs_client_output import CLIENT, CLIPPED, LOCAL, PLAIN, SAMPLE, write_all
from silodp.studies.study import Cell, Found, Plan, Scale, Study, Work, train_or_resume


@dataclass(frozen=True)
class _Size:
    """How much is run.

    Attributes:
        settings: of every run, besides what all scales share.
        local_steps: over which DP-SGD's drift is followed.
        repetitions: of that, with other noise.
    """

    settings: Mapping[str, Any]
    local_steps: int
    repetitions: int


_SMALL = {"cohort.slices": 240, "rounds": 20, "local.batch_size": 8}
_SIZES: dict[Scale, _Size] = {
    "smoke": _Size(
        {
            "cohort.slices": 60, "cohort.image_size": 32, "model.features": 4, "rounds": 3,
            "local.batch_size": 4,
        }, 6, 2,
    ),
    "small": _Size({**_SMALL, "cohort.image_size": 32, "model.features": 4}, 80, 4),
    "paper": _Size({**_SMALL, "cohort.image_size": 128, "model.features": 32}, 80, 4),
}  # fmt: skip

# C = 1 = η·c·steps, what 40 images in batches of 8 can reach in an epoch; section 2.3 has C = O(Tc).
_EVERYWHERE = {
    "checkpoint_every": 1,  # the models of the rounds are taken from there
    "diagnostics": False,
    "model.norm": "group",
    "local.optimizer": "sgd",
    "local.momentum": 0.0,
    "local.learning_rate": 1.0,
    "privacy.sample_clip_bound": 0.2,
}
_OF_IMAGES = ("privacy.sample_clip_bound", "privacy.image_delta")  # where noise is for images


def cells(plan: Plan) -> list[Cell]:
    """Four runs a seed, on the same data, model, start and batches; then DP-SGD in one hospital."""
    from silodp.studies.drift import Drifting, train_keeping_models

    z, size = plan.base.privacy.noise_multiplier, _SIZES[plan.scale]
    if not z:
        raise InputError("privacy.noise_multiplier = 0: this study is about noise; give a number above 0")
    asked = {key: value for key, value in plan.changes.items() if not key.startswith(_OWN)}
    shared = {**_EVERYWHERE, **size.settings, **asked}
    bound = {"clipping.bound": shared.pop("clipping.bound", 1.0)}
    clipped = {"clipping.rule": "fixed", **bound}
    of_images = {key: shared.pop(key) for key in _OF_IMAGES if key in shared}
    at_images = {"clipping.rule": "none", "privacy.level": "sample", **of_images}
    kinds: list[tuple[str, float, dict[str, Any], Work]] = [
        (PLAIN, 0.0, {"clipping.rule": "none"}, train_or_resume),
        (CLIENT, z, clipped, train_keeping_models),
        (CLIPPED, 0.0, clipped, train_keeping_models),
        (SAMPLE, z, at_images, train_or_resume),
    ]
    runs = [
        plan.cell(noise, False, seed, variant=variant, changes=shared | changes, work=work)
        for seed in plan.seeds
        for variant, noise, changes, work in kinds
    ]
    if runs[0].experiment.rounds < 2:
        raise InputError("rounds = 1: this study follows drift over rounds; set rounds=2 or more")
    drifts = [
        plan.cell(
            z, False, plan.seeds[0], variant=f"{LOCAL}-{number}", changes=shared | at_images,
            work=Drifting(size.local_steps, number), product="drift.json",
        )
        for number in range(1, size.repetitions + 1)
    ]  # fmt: skip
    return runs + [replace(cell, columns={**cell.columns, "variant": LOCAL}) for cell in drifts]


_OWN = (
    "seed", "server.", "privacy.noise_multiplier", "privacy.level", "clipping.rule", "intermediaries.",
    "checkpoint_every",
)  # fmt: skip
"""What makes one cell differ from another, or is needed by all: nobody's to set."""


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    from silodp.studies.drift import client_drift, local_drift

    runs = [one for one in found if one.cell.columns["variant"] != LOCAL]
    drifts = [local_drift(select(found, variant=LOCAL)), client_drift(runs)]
    write_all(out, plan, runs, [drift for drift in drifts if drift is not None])


SAMPLE_VS_CLIENT = Study(
    "sample-vs-client", "Section 2.3: sample-level beside client-level DP", "prostate", cells, write, runs=8,
    settable=("privacy.noise_multiplier",),
)  # fmt: skip
