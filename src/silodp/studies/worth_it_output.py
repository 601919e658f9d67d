"""What worth-it writes: each hospital's figures at home, the table, what it says, and the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from silodp.studies.output import (
    METRIC_NAMES,
    defined_mean,
    distinct,
    epsilons,
    run_rows,
    signed,
    write_figure,
    write_markdown,
)
from silodp.studies.study import Found, Plan
from silodp.studies.whole_hospital import same_generator
from silodp.tables import markdown_table, write_csv

if TYPE_CHECKING:
    from silodp.runs.personal import Tuning

LINES = {
    "alone": ("alone: own fine-tuning of the start", "#555555", "o--"),
    "released": ("released, with privacy for a hospital", "#D55E00", "s:"),
    "personal": ("personal: released, then own fine-tuning", "#0072B2", "^-"),
    "federated": ("federated without privacy, all parameters", "#009E73", "D-."),
}
"""What a model is called, its colour and its style; told apart without colours too."""


@dataclass(frozen=True)
class AtHome:
    """The headline metric of each model on one hospital's own test images; NaN: not defined.

    Attributes:
        members: how many hospitals trained.
    """

    members: int
    seed: int
    hospital: str
    training_images: int
    test_images: int
    alone: float
    released: float
    personal: float
    federated: float

    def score(self, model: str) -> float:
        value: float = getattr(self, model)
        return value


def write_all(
    out: Path,
    plan: Plan,
    found: Sequence[Found],
    released: Sequence[Found],
    homes: Sequence[AtHome],
    tuning: Tuning,
    more: Iterable[str],
) -> None:
    """All files of the study.

    Args:
        found: every run.
        released: those with privacy.
        homes: a line a hospital and run.
        tuning: how hospitals fine-tune.
        more: sentences for the end.
    """
    write_csv(out / "results.csv", run_rows(found))
    write_csv(out / "hospitals.csv", [asdict(one) for one in homes])
    explanation = (
        "The first N hospitals of the cohort train; each model is judged on a hospital's own test images, "
        f"mean over these N. The released model is the recipe's, {_numbers(released)} numbers trained, the "
        "federated one without privacy is all of the network. Own fine-tuning, for «alone» from the start "
        f"and for «personal» from the released model: all parameters, SGD at {tuning.learning_rate:g}, "
        f"batches of {tuning.batch_size}, {tuning.epochs} epoch{'s' * (tuning.epochs > 1)}. What comes of it "
        "stays in the hospital, so it costs no ε. Rows are of unlike hospitals: compare models within a row."
    )
    if plan.base.privacy.delta is None:
        explanation += (
            " δ follows N by the paper's rule, 10^-k ≤ 1/N: compare the ε of rows with the same δ only."
        )
    local = plan.base.local
    training = (
        f"{plan.base.model.kind}, all runs from the start {plan.base.model.start}; rounds "
        f"{distinct(found, 'rounds')}; local {local.optimizer} at {local.learning_rate:g}, batches of "
        f"{local.batch_size}"
    )
    parts = [explanation, _table(plan, released, homes), verdict(plan, homes), *more, *same_generator(plan)]
    title = (
        f"Is federation worth it for a hospital? {'Prostate' if plan.task == 'prostate' else 'Haemorrhage'}"
    )
    write_markdown(out, title, plan, found, parts, training)
    _picture(out, plan, homes)


def _numbers(runs: Sequence[Found]) -> str:
    return ", ".join(f"{count:,}" for count in sorted({one.summary["parameters"] for one in runs}))


def _gains(homes: Iterable[AtHome], model: str = "personal") -> list[float]:
    """Of a model over «alone», hospital by hospital, where both are defined."""
    gains = [home.score(model) - home.alone for home in homes]
    return [gain for gain in gains if not math.isnan(gain)]


def _by_number(homes: Sequence[AtHome]) -> dict[int, list[AtHome]]:
    numbers = sorted({home.members for home in homes})
    return {number: [home for home in homes if home.members == number] for number in numbers}


def _table(plan: Plan, released: Sequence[Found], homes: Sequence[AtHome]) -> str:
    header = ["hospitals N", "δ", "ε hospital", "training images each", "test images each"]
    header += [f"{METRIC_NAMES[plan.metrics[0]]}: {model}" for model in LINES]
    header += ["released − alone", "personal − alone", "gain by it"]
    rows = []
    for members, own in _by_number(homes).items():
        runs, gains = [one for one in released if one.summary["members"] == members], _gains(own)
        rows.append(
            [
                str(members),
                distinct(runs, "delta"),
                epsilons(runs)[0],
                f"{mean(home.training_images for home in own):.0f}",
                f"{mean(home.test_images for home in own):.0f}",
                *(_figure(defined_mean(home.score(model) for home in own)) for model in LINES),
                signed(defined_mean(_gains(own, "released"))),
                signed(defined_mean(gains)),
                f"{sum(gain > 0 for gain in gains)} of {len(gains)}",
            ]
        )
    return markdown_table(header, rows)


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def verdict(plan: Plan, homes: Sequence[AtHome]) -> str:
    """Where a hospital gains by taking part and fine-tuning, against fine-tuning the start alone."""
    metric = METRIC_NAMES[plan.metrics[0]]
    gains = {members: own for members, there in _by_number(homes).items() if (own := _gains(there))}
    if not gains:
        return f"The {metric} of both models is defined in no hospital: nothing to compare."
    means = {members: mean(own) for members, own in gains.items()}
    listed = [
        f"{word} than staying alone with N = {', '.join(some)}"
        for word, better in (("better", True), ("not better", False))
        if (
            some := [f"{members} ({signed(gain)})" for members, gain in means.items() if (gain > 0) is better]
        )
    ]
    every = [gain for own in gains.values() for gain in own]
    higher, lower = sum(gain > 0 for gain in every), sum(gain < 0 for gain in every)
    return (
        f"By the mean {metric}, taking part and then fine-tuning is {'; '.join(listed)}. Of {len(every)} "
        f"hospitals, counted in each run, {higher} gain by it, {lower} lose and "
        f"{len(every) - higher - lower} have the same, from {signed(min(every))} to {signed(max(every))}."
    )


def _picture(out: Path, plan: Plan, homes: Sequence[AtHome]) -> None:
    from matplotlib.figure import Figure

    metric, by_number = METRIC_NAMES[plan.metrics[0]], _by_number(homes)
    figure = Figure(figsize=(10.5, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for model, (name, colour, style) in LINES.items():
        values = [defined_mean(home.score(model) for home in own) for own in by_number.values()]
        left.plot(list(by_number), values, style, color=colour, label=name)
    left.set(xlabel="hospitals that train, N", xticks=list(by_number), ylim=(0, 1))
    left.set_ylabel(f"test {metric} on a hospital's own images,\nmean over hospitals (higher is better)")
    right.axhline(0, color="#555555", linewidth=1)
    for members, own in by_number.items():
        if gains := _gains(own):
            right.plot([members] * len(gains), gains, "o", color="#0072B2", alpha=0.35, markersize=4)
            right.plot(members, mean(gains), "_", color="black", markersize=18, markeredgewidth=2)
    right.set(xlabel="hospitals that train, N", xticks=list(by_number))
    right.set_ylabel(f"{metric}: personal − alone\n(a dot a hospital, a bar their mean; above 0: better)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    write_figure(out, "worth-it", figure)
