"""What the study of section 2.3 found, as csv, Markdown and a picture; sentences follow from the numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from silodp.experiment import delta_by_rule
from silodp.files import write_atomically
from silodp.privacy.accountants import spent
from silodp.privacy.events import UNITS, Unit
from silodp.privacy.ledger import read_ledger
from silodp.runs.wording import show_epsilon
from silodp.studies.output import (
    between,
    mean_test,
    run_rows,
    said_of_part,
    select,
    spread,
    write_figure,
    write_markdown,
)
from silodp.studies.study import Found, Plan
from silodp.tables import markdown_table, write_csv

PLAIN, CLIENT, CLIPPED = "without-privacy", "client-level", "client-level-without-noise"
SAMPLE, LOCAL = "sample-level", "dp-sgd-drift"
IMAGE: Literal["image"] = "image"  # a unit beside a hospital and an intermediary
NAMES = {PLAIN: "without privacy", CLIENT: "client-level DP", SAMPLE: "sample-level DP"}
"""Runs that the table shows; CLIPPED is there to measure drift from."""


@dataclass(frozen=True)
class Drift:
    """How far noise drove the model from training without it, after 1, 2, … steps or rounds.

    Attributes:
        level: "sample" or "client".
        over: what t counts.
        repetitions: the drift of each.
        law: what the √t law says.
        learnt: how far training without noise went from its start.
    """

    level: str
    over: str
    repetitions: list[list[float]]
    law: list[float]
    learnt: list[float]

    @property
    def mean(self) -> list[float]:
        return [statistics.mean(column) for column in zip(*self.repetitions, strict=True)]

    @property
    def exponent(self) -> float:
        """p of the law drift ∝ t^p that fits the mean best, by least squares of the logarithms."""
        times = [math.log(number) for number in range(1, len(self.law) + 1)]
        return statistics.linear_regression(times, [math.log(drift) for drift in self.mean]).slope


def write_all(out: Path, plan: Plan, found: Sequence[Found], drifts: Sequence[Drift]) -> None:
    """results.csv, drift.csv, table.md, drift.svg and drift.png, from what is there."""
    parts, title = [], "Sample-level and client-level DP at the same noise multiplier, z = "
    title += f"{plan.base.privacy.noise_multiplier:g}"
    if found:
        rows = [row | _image(one) for row, one in zip(run_rows(found), found, strict=True)]
        write_csv(out / "results.csv", rows)
        parts += [_runs_table(found), _explanation(found)]
    if drifts:
        write_csv(out / "drift.csv", _drift_lines(drifts))
        parts.append(_drift_table(drifts))
        _picture(out, plan, drifts)
    parts.append(reading(plan, found, drifts))
    if found:
        write_markdown(out, title, replace(plan, base=found[0].cell.experiment), found, parts)
    else:
        content = "\n\n".join([f"# {title}", *said_of_part(plan), *parts])
        write_atomically(out / "table.md", (content + "\n").encode())


def _image(one: Found) -> dict[str, float]:
    """ε of an image. Where nobody noises single images, one is as safe as its hospital that is replaced."""
    delta, epsilon = delta_by_rule(sum(one.training_images.values())), one.summary["epsilon"]["image"]
    if epsilon is None:
        epsilon = spent(read_ledger(one.folder / "ledger.jsonl").events, delta).replace_one.hospital
    return {"epsilon_image": epsilon, "delta_image": one.summary["image_delta"] or delta}


def _epsilons(runs: Sequence[Found], unit: Unit | Literal["image"]) -> list[float]:
    return [_image(one)["epsilon_image"] if unit == "image" else one.epsilon(unit) for one in runs]


def _runs_table(found: Sequence[Found]) -> str:
    header = ["run", "test Dice", "ε of a hospital", "ε of an intermediary", "ε of an image"]
    rows = []
    for variant, name in NAMES.items():
        if runs := select(found, variant=variant):
            epsilons = [between(_epsilons(runs, unit)) for unit in (*UNITS, IMAGE)]
            epsilons[-1] = "≤ " * (variant == CLIENT) + epsilons[-1]
            rows.append([name, spread([one.test("dice") for one in runs]), *epsilons])
    return markdown_table(header, rows)


def _clip_bounds(found: Sequence[Found]) -> str:
    """C of the runs that clip updates, which is the same in all, and c of those that clip gradients."""
    bounds = [one.cell.experiment.clipping.first_bound() for one in found]
    clipped = [bound for bound in bounds if bound is not None and math.isfinite(bound)]
    words = [f"C = {clipped[0]:g} on an update"] if clipped else []
    at_images = (one.cell.experiment.privacy for one in found)
    image = {one.gradient_bound for one in at_images if one.level == "sample"}
    return ", ".join([*words, *(f"c = {bound:g} on an image's gradient" for bound in sorted(image))])


def _explanation(found: Sequence[Found]) -> str:
    return (
        f"Clip bounds: {_clip_bounds(found)}. δ = {_image(found[0])['delta_image']:g} for an image. "
        "Hospitals are not split, so an intermediary is the whole hospital. With client-level DP an image is "
        "as safe as its hospital when that is replaced, hence ≤. Sample-level DP trains on soft Dice per "
        "image, the others on soft Dice over the batch. The paper prints no numbers of this comparison."
    )


def _drift_table(drifts: Sequence[Drift]) -> str:
    header = ["drift from training without noise", "after", "measured", "√t law", "grows like"]
    return markdown_table(
        [*header, "training went"],
        [
            [
                f"{drift.level}-level DP",
                f"{len(drift.law)} {drift.over}s",
                f"{drift.mean[-1]:.3g}",
                f"{drift.law[-1]:.3g}",
                f"t^{drift.exponent:.2f}",
                f"{drift.learnt[-1]:.3g}",
            ]
            for drift in drifts
        ],
    )


def reading(plan: Plan, found: Sequence[Found], drifts: Sequence[Drift]) -> str:
    """What the numbers say."""
    runs = {variant: select(found, variant=variant) for variant in NAMES}
    scores = [
        f"{_dice(runs[variant])} " + ("without privacy" if variant == PLAIN else f"with {NAMES[variant]}")
        for variant in (CLIENT, SAMPLE, PLAIN)
        if runs[variant]
    ]
    noise = plan.base.privacy.noise_multiplier
    sentences = [f"At z = {noise:g} test Dice is {', '.join(scores)}."] if scores else []
    for unit in (UNITS[0], IMAGE) if runs[CLIENT] and runs[SAMPLE] else ():
        epsilon = {variant: _epsilons(runs[variant], unit)[0] for variant in (CLIENT, SAMPLE)}
        best, worst = sorted(epsilon, key=lambda variant: epsilon[variant])
        sentences.append(
            f"The smaller ε of {unit}s is that of {NAMES[best]}: {show_epsilon(epsilon[best])} against "
            f"{show_epsilon(epsilon[worst])}, which is {epsilon[worst] / epsilon[best]:,.3g} times as large."
        )
    for drift in drifts:
        end = drift.mean[-1]
        sentences.append(
            f"The drift of {drift.level}-level DP grows like t^{drift.exponent:.2f} in {len(drift.law)} "
            f"{drift.over}s (√t is t^0.50); it ends at {end / drift.law[-1]:.2f} times the √t law and at "
            f"{end / drift.learnt[-1]:,.3g} times the way that training without noise went."
        )
    return " ".join(sentences)


def _dice(runs: Sequence[Found]) -> str:
    value = mean_test(runs, "dice")
    return "undefined" if math.isnan(value) else f"{value:.3f}"


def _drift_lines(drifts: Sequence[Drift]) -> list[dict[str, Any]]:
    return [
        {"level": drift.level, "over": drift.over, "repetition": repetition, "t": number}
        | {"drift": f"{measured:.6g}", "law": f"{law:.6g}", "learnt": f"{learnt:.6g}"}
        for drift in drifts
        for repetition, path in enumerate(drift.repetitions, 1)
        for number, (measured, law, learnt) in enumerate(zip(path, drift.law, drift.learnt, strict=True), 1)
    ]


_TITLES = {
    "sample": ("Sample-level DP\nDP-SGD in one hospital: noise in every local step", "η·(zc/K)·√(t·d)"),
    "client": ("Client-level DP\nDP-FedAvg: noise once a round, at the server", "(zC/N)·√(t·d)"),
}


def _picture(out: Path, plan: Plan, drifts: Sequence[Drift]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(5 * len(drifts), 5.4), layout="constrained")
    noise = plan.base.privacy.noise_multiplier
    figure.suptitle(f"How far noise (z = {noise:g}) drives the model from training without it")
    for place, drift in zip(
        figure.subplots(1, len(drifts), sharey=True, squeeze=False)[0], drifts, strict=True
    ):
        title, law = _TITLES[drift.level]
        times, runs = range(1, len(drift.law) + 1), len(drift.repetitions)
        place.plot(times, drift.law, "k-", linewidth=1, label=f"noise that adds up: {law} ∝ t^0.50")
        for number, path in enumerate(drift.repetitions):
            label = (
                None
                if number
                else f"measured drift, {runs} run{'s' * (runs > 1)}: fitted ∝ t^{drift.exponent:.2f}"
            )
            place.plot(times, path, "o", color="#0072B2", alpha=0.5, markersize=4, label=label)
        place.plot(times, drift.learnt, "--", color="#009E73", label="how far training without noise went")
        place.set(title=title, xlabel=f"{drift.over} t", xscale="log", yscale="log")
        for axis in (place.xaxis, place.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        place.tick_params(labelleft=True)
        place.set_ylabel("distance between two models (L2 norm)")
        place.grid(alpha=0.3)
        place.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    symbols = "c, C clip bounds · K images in a batch · N hospitals · d parameters · η learning rate"
    figure.supxlabel(symbols, fontsize="small")
    write_figure(out, "drift", figure)
