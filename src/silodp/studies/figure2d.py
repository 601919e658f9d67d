"""Figure 2(d): the number of intermediaries v from round to round, beside its closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from silodp.intermediary import closed_form
from silodp.studies.output import epsilons, run_rows, select, write_figure, write_markdown
from silodp.studies.over_rounds import fedavg_cells, grows, hospitals_a_round, in_words, round_rows
from silodp.studies.study import Cell, Found, Plan, Study
from silodp.tables import markdown_table, write_csv

_LOOKS = (("#56B4E9", "o-"), ("#0072B2", "s-"), ("#000000", "^-"))
"""From the least noise to the most."""

_CAP = "#D55E00"


@dataclass(frozen=True)
class Course:
    """v of one run, from the second round on: the first only measures.

    Attributes:
        jumps: (round, change) wherever v changes by more than one from the round before.
        capped: rounds in which the smallest hospital had no images for as many as the rule asked for.
    """

    values: tuple[int, ...]
    jumps: tuple[tuple[int, int], ...]
    capped: tuple[int, ...]
    expected: float  # v* = sqrt(z√d/N)

    @property
    def width(self) -> int:
        return max(self.values) - min(self.values)


def course(one: Found) -> Course | None:
    """None for a run that ended with its measuring round."""
    lines = [line for line in one.rounds if line["applied"]]
    if not lines:
        return None
    values = tuple(line["intermediaries"] for line in lines)
    jumps = tuple(
        (after["round"], after["intermediaries"] - before["intermediaries"])
        for before, after in pairwise(lines)
        if abs(after["intermediaries"] - before["intermediaries"]) > 1
    )
    capped = tuple(line["round"] for line in lines if line["intermediaries_capped"])
    z = one.cell.experiment.privacy.noise_multiplier
    return Course(values, jumps, capped, closed_form(z, one.summary["parameters"], hospitals_a_round(one)))


def cells(plan: Plan) -> list[Cell]:
    return fedavg_cells(plan, (True,))


def write(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    courses = {
        z: [known for one in select(found, z=z) if (known := course(one)) is not None] for z in plan.noise
    }
    write_csv(out / "results.csv", run_rows(found))
    rows = [
        {**row, "closed_form": known.expected if (known := course(one)) else None}
        for one in found
        for row in round_rows([one])
    ]
    write_csv(out / "rounds.csv", rows)
    explanation = (
        "Intermediaries a hospital is split into, in each round, under the adaptive rule v ← ⌊v·√(N·λ)⌋. "
        "The first round only measures, with v = 1; «after the start» is from the second round on. v* = "
        "√(z√d/N) is where the rule settles if C is the median norm; it needs no data. A capped round is "
        "one in which the smallest hospital has no images for as many intermediaries as the rule asks for."
    )
    parts = [explanation, _table(found, courses), reading(courses), in_words("d")]
    write_markdown(out, "Figure 2(d), prostate: intermediaries over rounds", plan, found, parts)
    _picture(out, plan, found)


def _table(found: Sequence[Found], courses: dict[float, list[Course]]) -> str:
    header = ["z", "ε hospital", "ε intermediary", "v* closed form", "v after the start: median (least–most)"]
    header += ["changes of more than one", "capped rounds"]
    rows = []
    for z, known in courses.items():
        if not known:
            continue
        runs, values = select(found, z=z), [v for one in known for v in one.values]
        rows.append(
            [
                f"{z:g}",
                *epsilons(runs),
                f"{known[0].expected:.1f}",
                f"{median(values):g} ({min(values)}–{max(values)})",
                ", ".join(f"{by:+d} in round {number}" for one in known for number, by in one.jumps)
                or "none",
                f"{sum(len(one.capped) for one in known)} of {len(values)}",
            ]
        )
    return markdown_table(header, rows)


def reading(courses: dict[float, list[Course]]) -> str:
    """Held against the paper: at most one from round to round, but for one instance; more for larger z."""
    every = [one for known in courses.values() for one in known]
    if not any(len(one.values) > 1 for one in every):
        return "Too few rounds to say how v varies."
    jumps = sum(len(one.jumps) for one in every)
    seeds = max(len(known) for known in courses.values())
    largest = max((abs(by) for one in every for _, by in one.jumps), default=0)
    steps = sum(len(one.values) - 1 for one in every)
    held = jumps <= seeds  # the paper has one instance in one set of runs
    verdict = "holds" if held else "does not hold"
    several = f" a seed ({seeds} seeds)" if seeds > 1 else ""
    sentences = [
        f"After the start v changes by more than one from a round to the next in {jumps} of {steps} steps"
        + (f" (the largest change is {largest})" if jumps else "")
        + f": the paper's «at most one, but for one instance»{several} {verdict}.",
        f"Within a run the fewest and the most are {max(one.width for one in every)} apart at most.",
    ]
    middles = {z: median(v for one in known for v in one.values) for z, known in courses.items() if known}
    if len(middles) > 1:
        more = grows(list(middles.values()))
        shown = ", ".join(f"{value:g} at z = {z:g}" for z, value in middles.items())
        sentences.append(
            f"The median of v {'grows' if more else 'does not grow'} with z, {'as' if more else 'unlike'} in "
            f"the paper: {shown}."
        )
    away = max(abs(middles[z] - known[0].expected) for z, known in courses.items() if known)
    sentences.append(f"It is at most {away:.1f} from the closed form.")
    if capped := sum(len(one.capped) for one in every):
        total = sum(len(one.values) for one in every)
        sentences.append(f"In {capped} of {total} rounds v is capped, so its steadiness there is the cap's.")
    return " ".join(sentences)


def _picture(out: Path, plan: Plan, found: Sequence[Found]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    closed, cap = "closed form v* = √(z√d/N)", "capped: the smallest hospital has no images for more"
    for z, (colour, style) in zip(plan.noise, _LOOKS[-len(plan.noise) :], strict=True):
        runs = select(found, z=z)
        for number, one in enumerate(runs):
            rounds = {line["round"]: line["intermediaries"] for line in one.rounds}
            name = "" if number else f"z = {z:g}"
            axes.plot(list(rounds), list(rounds.values()), style, color=colour, markersize=4, label=name)
            capped = [line["round"] for line in one.rounds if line["intermediaries_capped"]]
            if capped:
                heights = [rounds[number] for number in capped]
                axes.plot(capped, heights, "o", color=_CAP, markersize=9, markerfacecolor="none", label=cap)
                cap = ""
        if known := next(filter(None, map(course, runs)), None):
            axes.axhline(known.expected, color=colour, linewidth=0.8, linestyle=":", label=closed)
            closed = ""
            place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
            label = f"v* at z = {z:g}: {known.expected:.1f}"
            axes.annotate(label, (1.01, known.expected), color="#333333", fontsize="small", **place)
    axes.axvspan(0.5, 1.5, color="#dddddd", zorder=0, label="the round that only measures")
    axes.set(xlabel="round", ylabel="intermediaries a hospital, v")
    axes.set_xlim(0.5, 0.5 + max(one.summary["rounds"] for one in found))
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("Into how many intermediaries each hospital is split", loc="left", fontsize="medium")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    write_figure(out, "figure2d", figure)


STUDY = Study(
    "figure2d",
    "Figure 2(d): intermediaries over rounds, beside the closed form",
    "prostate",
    cells,
    write,
    runs=3,
)
