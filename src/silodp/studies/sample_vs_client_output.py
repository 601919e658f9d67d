"""What the study of section 2.3 found, as csv, Markdown and a picture; sentences follow from the numbers."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from silodp.files import write_atomically

PLAIN = "without privacy"
CLIENT = "client-level DP"
CLIPPED = "client-level without noise"
SAMPLE = "sample-level DP"


@dataclass(frozen=True)
class Scale:
    """How much is run, and how.

    Attributes:
        slices: training images over all hospitals.
        seeds: how many seeds each run is repeated with.
        local_steps: steps over which DP-SGD's drift is followed.
        repetitions: of DP-SGD's drift, with other noise.
        sample_bound: c.
        client_bound: C = η·c·steps, what 40 images can reach in an epoch; section 2.3 has C = O(Tc).
    """

    slices: int
    image_size: int
    features: int
    rounds: int
    seeds: int
    local_steps: int
    repetitions: int
    noise_multiplier: float = 0.5
    learning_rate: float = 1.0
    batch_size: int = 8
    sample_bound: float = 0.2
    client_bound: float = 1.0


@dataclass(frozen=True)
class Row:
    """One run, a line of results.csv."""

    run: str
    seed: int
    noise_multiplier: float
    dice: float
    epsilon_hospital: float
    epsilon_intermediary: float
    epsilon_image: float
    delta: float
    delta_image: float
    parameters: int


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


def write_all(out: Path, scale: Scale, rows: Sequence[Row], drifts: Sequence[Drift]) -> None:
    """results.csv, drift.csv, table.md, drift.svg and drift.png."""
    write_atomically(out / "results.csv", _csv([asdict(row) for row in rows]))
    write_atomically(out / "drift.csv", _csv(_drift_lines(drifts)))
    write_atomically(out / "table.md", table(scale, rows, drifts).encode())
    for kind in ("svg", "png"):
        write_atomically(out / f"drift.{kind}", _picture(scale, drifts, kind))


def table(scale: Scale, rows: Sequence[Row], drifts: Sequence[Drift]) -> str:
    """Two tables, what they rest on, and what is read from them."""
    first = {name: next(row for row in rows if row.run == name) for name in (PLAIN, CLIENT, SAMPLE)}
    dice = {name: [row.dice for row in rows if row.run == name] for name in first}
    plural = "seeds" if scale.seeds > 1 else "seed"
    lines = [
        f"# Sample-level and client-level DP at the same noise multiplier, z = {scale.noise_multiplier:g}",
        "",
        f"synthetic-mri, {scale.slices} training images of {scale.image_size}×{scale.image_size} pixels; "
        f"U-Net with {rows[0].parameters:,} parameters; {scale.rounds} rounds of one local epoch of SGD "
        f"(learning rate {scale.learning_rate:g}, batches of {scale.batch_size}); {scale.seeds} {plural}. "
        f"Clip bounds: C = {scale.client_bound:g} on an update, c = {scale.sample_bound:g} on an image's "
        "gradient.",
        "",
        "| run | test Dice | ε of a hospital | ε of an intermediary | ε of an image |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {_spread(dice[name])} | {_epsilon(row.epsilon_hospital)} | "
            f"{_epsilon(row.epsilon_intermediary)} | {'≤ ' * (name == CLIENT)}{_epsilon(row.epsilon_image)} |"
            for name, row in first.items()
        ),
        "",
        f"ε for contributions left out, at δ = {rows[0].delta:g} for a hospital and an intermediary and at "
        f"δ = {rows[0].delta_image:g} for an image. Hospitals are not split, so an intermediary is the whole "
        "hospital. With client-level DP an image is as safe as its hospital when that is replaced, hence ≤. "
        "Sample-level DP trains on soft Dice per image, the others on soft Dice over the batch.",
        "",
        "| drift from training without noise | after | measured | √t law | grows like | training went |",
        "|---|---|---|---|---|---|",
        *(
            f"| {drift.level}-level DP | {len(drift.law)} {drift.over}s | {drift.mean[-1]:.3g} | "
            f"{drift.law[-1]:.3g} | t^{drift.exponent:.2f} | {drift.learnt[-1]:.3g} |"
            for drift in drifts
        ),
        "",
        _reading(scale, first, dice, drifts),
        "",
    ]
    return "\n".join(lines)


def _reading(
    scale: Scale, first: dict[str, Row], dice: dict[str, list[float]], drifts: Sequence[Drift]
) -> str:
    score = {name: statistics.mean(values) for name, values in dice.items()}
    sentences = [
        f"At z = {scale.noise_multiplier:g} test Dice is {score[CLIENT]:.3f} with client-level DP, "
        f"{score[SAMPLE]:.3f} with sample-level DP and {score[PLAIN]:.3f} without privacy."
    ]
    for unit in ("hospital", "image"):
        epsilon = {name: getattr(first[name], f"epsilon_{unit}") for name in (CLIENT, SAMPLE)}
        best, worst = sorted(epsilon, key=lambda name: epsilon[name])
        sentences.append(
            f"The smaller ε of {unit}s is that of {best}: {_epsilon(epsilon[best])} against "
            f"{_epsilon(epsilon[worst])}, which is {epsilon[worst] / epsilon[best]:,.3g} times as large."
        )
    for drift in drifts:
        end = drift.mean[-1]
        sentences.append(
            f"The drift of {drift.level}-level DP grows like t^{drift.exponent:.2f} in {len(drift.law)} "
            f"{drift.over}s (√t is t^0.50); it ends at {end / drift.law[-1]:.2f} times the √t law and at "
            f"{end / drift.learnt[-1]:,.3g} times the way that training without noise went."
        )
    return " ".join(sentences)


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def _epsilon(value: float) -> str:
    return f"{value:,.1f}" if math.isfinite(value) else "∞"


def _csv(lines: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().encode()


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


def _picture(scale: Scale, drifts: Sequence[Drift], kind: str) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(10, 5.4), layout="constrained")
    figure.suptitle(
        f"How far noise (z = {scale.noise_multiplier:g}) drives the model from training without it"
    )
    for place, drift in zip(figure.subplots(1, 2, sharey=True), drifts, strict=True):
        title, law = _TITLES[drift.level]
        times, runs = range(1, len(drift.law) + 1), len(drift.repetitions)
        place.plot(times, drift.law, "k-", linewidth=1, label=f"noise that adds up: {law} ∝ t^0.50")
        for number, path in enumerate(drift.repetitions):
            label = None if number else f"measured drift, {runs} runs: fitted ∝ t^{drift.exponent:.2f}"
            place.plot(times, path, "o", color="tab:blue", alpha=0.5, markersize=4, label=label)
        place.plot(times, drift.learnt, color="tab:green", label="how far training without noise went")
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
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "silodp"}):
        figure.savefig(content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return content.getvalue()
