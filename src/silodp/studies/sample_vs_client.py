"""Section 2.3: sample-level DP beside client-level DP at the same noise multiplier z.

1. Test Dice, and ε for a hospital, an intermediary and an image, of each and of training without privacy.
2. The drift ‖θ noisy − θ clean‖ of a model from noise-free training with the same clipping, batches and
   start: of DP-SGD over local steps, of DP-FedAvg over rounds, each beside the √t law for noise that adds up.

A small U-Net (group norm, since BatchNorm mixes images) with local SGD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from silodp.errors import InputError
from silodp.experiment import delta_by_rule
from silodp.privacy.accountants import spent
from silodp.privacy.ledger import read_ledger
from silodp.runs.wording import show_epsilon
from silodp.studies.claims import Claim
from silodp.studies.columns import Columns, between, epsilon, select, spread_test, table
from silodp.studies.output import Results, run_rows
from silodp.studies.pictures import BLUE, GREEN, Line, Panel, Picture
from silodp.studies.study import Base, Cell, CellRun, Plan, Scale, Study, Work, train_or_resume

if TYPE_CHECKING:
    from silodp.studies.drift import Drift

PLAIN, CLIENT, CLIPPED = "without-privacy", "client-level", "client-level-without-noise"
SAMPLE, LOCAL = "sample-level", "dp-sgd-drift"
NAMES = {PLAIN: "without privacy", CLIENT: "client-level DP", SAMPLE: "sample-level DP"}
"""Runs in the table; CLIPPED is the reference for drift."""

NEAR = 0.1
"""An exponent this close to ½ counts as √t."""


# C = 1 = η·c·steps, what 40 images in batches of 8 can reach in an epoch; section 2.3 has C = O(Tc).
_SHARED = {
    "checkpoint_every": 1,  # the models of the rounds are taken from there
    "diagnostics": False,
    "model.norm": "group",
    "local.optimizer": "sgd",
    "local.momentum": 0.0,
    "local.learning_rate": 1.0,
    "clipping.rule": "fixed",
    "clipping.bound": 1.0,
}
_LARGER = {**_SHARED, "cohort.slices": 240, "rounds": 20, "local.batch_size": 8}
BASES: dict[Scale, Base] = {
    "smoke": Base("demo", {
        **_SHARED, "cohort.slices": 60, "cohort.image_size": 32, "model.features": 4, "model.levels": 2,
        "rounds": 3, "local.batch_size": 4,
    }),
    "small": Base("demo", {**_LARGER, "cohort.image_size": 32, "model.features": 4}),
    "paper": Base("prostate-paper", {**_LARGER, "cohort.image_size": 128, "model.features": 32}),
}  # fmt: skip
_DRIFT: dict[Scale, tuple[int, int]] = {"smoke": (6, 2), "small": (80, 4), "paper": (80, 4)}
"""Steps over which the drift of DP-SGD is followed, and how often, with other noise."""


def cells(plan: Plan) -> list[Cell]:
    """Four runs a seed, on the same data, model, start and batches; then DP-SGD in one hospital."""
    from silodp.studies.drift import FollowDrift, train_keeping_models

    z = plan.base.privacy.noise_multiplier
    if not z:
        raise InputError("privacy.noise_multiplier = 0: this study is about noise; give a number above 0")
    if plan.base.rounds < 2:
        raise InputError("rounds = 1: this study follows drift over rounds; set rounds=2 or more")
    plain = {"clipping.rule": "none", "checkpoint_every": 1}
    clipped = plain | {"clipping.rule": "fixed", "clipping.bound": plan.base.clipping.first_bound()}
    at_images = plain | {"privacy.level": "sample", "privacy.sample_clip_bound": 0.2}
    kinds: list[tuple[str, float, dict[str, Any], Work]] = [
        (PLAIN, 0.0, plain, train_or_resume),
        (CLIENT, z, clipped, train_keeping_models),
        (CLIPPED, 0.0, clipped, train_keeping_models),
        (SAMPLE, z, at_images, train_or_resume),
    ]
    runs = [
        plan.cell(noise, False, seed, variant=variant, changes=changes, work=work)
        for seed in plan.seeds
        for variant, noise, changes, work in kinds
    ]
    steps, repetitions = _DRIFT[plan.scale]
    drifts = [
        plan.cell(
            z, False, plan.seeds[0], variant=f"{LOCAL}-{number}", changes=at_images,
            work=FollowDrift(steps, number), product="drift.json",
        )
        for number in range(1, repetitions + 1)
    ]  # fmt: skip
    return runs + [replace(cell, columns={**cell.columns, "variant": LOCAL}) for cell in drifts]


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    from silodp.studies.drift import client_drift, local_drift

    runs = [one for one in found if one.cell.columns["variant"] != LOCAL]
    noisy, clean = select(runs, variant=CLIENT), select(runs, variant=CLIPPED)
    both = (local_drift(select(found, variant=LOCAL)), client_drift(noisy, clean))
    drifts = [drift for drift in both if drift is not None]
    lines = [
        {"level": drift.level, "over": drift.over, "repetition": repetition, "t": number}
        | {"drift": f"{measured:.6g}", "law": f"{law:.6g}", "learnt": f"{learnt:.6g}"}
        for drift in drifts
        for repetition, path in enumerate(drift.repetitions, 1)
        for number, (measured, law, learnt) in enumerate(zip(path, drift.law, drift.learnt, strict=True), 1)
    ]
    z = plan.base.privacy.noise_multiplier
    tables = [_runs_table(runs), _explanation(runs)] if runs else []
    return Results(
        f"Sample-level and client-level DP at the same noise multiplier, z = {z:g}",
        runs,
        tables + ([_drift_table(drifts)] if drifts else []),
        claims(runs, drifts),
        pictures={"drift": _picture(z, drifts)} if drifts else {},
        tables={
            "results.csv": [row | _image(one) for row, one in zip(run_rows(runs), runs, strict=True)],
            "drift.csv": lines,
        },
    )


def _image(one: CellRun) -> dict[str, float]:
    """ε of an image; without noise for images it is that of replacing its hospital."""
    delta, epsilon = delta_by_rule(sum(one.training_images.values())), one.summary["epsilon"]["image"]
    if epsilon is None:
        epsilon = spent(read_ledger(one.folder / "ledger.jsonl").events, delta).replace_one.hospital
    return {"epsilon_image": epsilon, "delta_image": one.summary["image_delta"] or delta}


def _runs_table(runs: Sequence[CellRun]) -> str:
    def image(variant: str) -> str:
        values = [_image(one)["epsilon_image"] for one in select(runs, variant=variant)]
        return "≤ " * (variant == CLIENT) + between(values)

    columns: Columns[str] = (
        ("run", lambda variant: NAMES[variant]),
        ("test Dice", lambda variant: spread_test(select(runs, variant=variant), "dice")),
        ("ε of a hospital", lambda variant: epsilon(select(runs, variant=variant), "hospital")),
        ("ε of an intermediary", lambda variant: epsilon(select(runs, variant=variant), "intermediary")),
        ("ε of an image", image),
    )
    return table([variant for variant in NAMES if select(runs, variant=variant)], columns)


def _explanation(runs: Sequence[CellRun]) -> str:
    """Explains the table, with C of the runs that clip updates and c of those that clip gradients."""
    experiments = [one.cell.experiment for one in runs]
    updates = {bound for one in experiments if (bound := one.clipping.first_bound()) not in (None, math.inf)}
    images = {one.privacy.gradient_bound for one in experiments if one.privacy.level == "sample"}
    bounds = [f"C = {bound:g} on an update" for bound in updates]
    bounds += [f"c = {bound:g} on an image's gradient" for bound in images]
    return (
        f"Clip bounds: {', '.join(bounds)}. δ = {_image(runs[0])['delta_image']:g} for an image. "
        "Hospitals are not split, so an intermediary is the whole hospital. With client-level DP an image is "
        "as safe as its hospital when that is replaced, hence ≤. Sample-level DP trains on soft Dice per "
        "image, the others on soft Dice over the batch. The paper prints no numbers of this comparison."
    )


def _drift_table(drifts: Sequence[Drift]) -> str:
    columns: Columns[Drift] = (
        ("drift from training without noise", lambda drift: f"{drift.level}-level DP"),
        ("after", lambda drift: f"{len(drift.law)} {drift.over}s"),
        ("measured", lambda drift: f"{drift.mean[-1]:.3g}"),
        ("√t law", lambda drift: f"{drift.law[-1]:.3g}"),
        ("grows like", lambda drift: f"t^{drift.exponent:.2f}"),
        ("distance of training from its start", lambda drift: f"{drift.learnt[-1]:.3g}"),
    )
    return table(drifts, columns)


def claims(runs: Sequence[CellRun], drifts: Sequence[Drift]) -> list[Claim]:
    """Claims that each mode has the smaller ε for its own unit, and that drift grows like √t."""
    client, sample = select(runs, variant=CLIENT), select(runs, variant=SAMPLE)
    found = []
    if client and sample:
        hospital = [one.epsilon("hospital") for one in (client[0], sample[0])]
        image = [_image(one)["epsilon_image"] for one in (client[0], sample[0])]
        for unit, better, own, other in (
            ("a hospital", CLIENT, hospital[0], hospital[1]),
            ("an image", SAMPLE, image[1], image[0]),
        ):
            measured = (
                f"{show_epsilon(own)} against {show_epsilon(other)}, which is {other / own:,.3g} times it"
            )
            found.append(Claim(f"{NAMES[better]} has the smaller ε of {unit}", own < other, measured))
    for drift in drifts:
        end = drift.mean[-1]
        found.append(
            Claim(
                f"The drift of {drift.level}-level DP grows like √t (t^0.50, within {NEAR:g})",
                abs(drift.exponent - 0.5) <= NEAR,
                f"t^{drift.exponent:.2f} in {len(drift.law)} {drift.over}s; at the end "
                f"{end / drift.law[-1]:.2f} times the √t law and {end / drift.learnt[-1]:,.3g} times the "
                "distance of training without noise from its start",
            )
        )
    return found


_TITLES = {
    "sample": ("Sample-level DP\nDP-SGD in one hospital: noise in every local step", "η·(zc/K)·√(t·d)"),
    "client": ("Client-level DP\nDP-FedAvg: noise once a round, at the server", "(zC/N)·√(t·d)"),
}


def _picture(z: float, drifts: Sequence[Drift]) -> Picture:
    panels = []
    for drift in drifts:
        (title, law), count = _TITLES[drift.level], len(drift.repetitions)
        name = f"measured drift, {count} run{'s' * (count > 1)}: fitted ∝ t^{drift.exponent:.2f}"
        learnt = "distance of training without noise from its start"
        lines = [
            Line([*enumerate(drift.law, 1)], "-", "black", f"accumulated noise: {law} ∝ t^0.50"),
            Line([point for path in drift.repetitions for point in enumerate(path, 1)], "o", BLUE, name),
            Line([*enumerate(drift.learnt, 1)], "--", GREEN, learnt),
        ]
        label = "distance between two models (L2 norm)"
        panels.append(Panel(f"{drift.over} t", label, lines, title=title, y_range=None, log="xy"))
    return Picture(
        panels,
        (5 * len(drifts), 5.4),
        f"Drift of the model under noise (z = {z:g}) from training without noise",
        legends=0,
        note="c, C clip bounds · K images in a batch · N hospitals · d parameters · η learning rate",
    )


SAMPLE_VS_CLIENT = Study(
    "sample-vs-client", "Section 2.3: sample-level beside client-level DP", "prostate", cells, results,
    runs=8, settable=("privacy.noise_multiplier",), bases=BASES,
)  # fmt: skip
