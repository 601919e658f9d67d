"""Figure 2(d): the number of intermediaries v from round to round, beside its closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from silodp.intermediary import closed_form
from silodp.studies.claims import Claim, rising
from silodp.studies.columns import privacy, select, table
from silodp.studies.output import Results
from silodp.studies.over_rounds import fedavg_cells, hospitals_a_round, paper_shows, round_rows, uncapped
from silodp.studies.pictures import BLUE, ORANGE, Level, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study

_STYLES = (("#56B4E9", "o-"), (BLUE, "s-"), ("#000000", "^-"))
"""Colour and style of the lines, from the least noise to the most."""

_EXPLANATION = (
    "Intermediaries a hospital is split into, in each round, under the adaptive rule v ← ⌊v·√(N·λ)⌋. "
    "The first round only measures, with v = 1; «after the start» is from the second round on. v* = "
    "√(z√d/N) is where the rule settles if C is the median norm; it needs no data. A capped round is "
    "one in which the smallest hospital has too few images for the v of the rule."
)


@dataclass(frozen=True)
class Course:
    """v of one run, from the second round on: the first only measures.

    Attributes:
        jumps: (round, change) wherever v changes by more than one from the round before.
        capped: rounds in which the smallest hospital had too few images for the v of the rule.
    """

    values: tuple[int, ...]
    jumps: tuple[tuple[int, int], ...]
    capped: int


def course(one: CellRun) -> Course:
    lines = [line for line in one.rounds if line["applied"]]
    steps = [
        (after["round"], after["intermediaries"] - before["intermediaries"])
        for before, after in pairwise(lines)
    ]
    return Course(
        tuple(line["intermediaries"] for line in lines),
        tuple((number, by) for number, by in steps if abs(by) > 1),
        sum(line["intermediaries_capped"] for line in lines),
    )


def expected(one: CellRun) -> float:
    """v* = √(z√d/N)."""
    z = one.cell.experiment.privacy.noise_multiplier
    return closed_form(z, one.summary["parameters"], hospitals_a_round(one))


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    courses = {z: [course(one) for one in select(found, z=z)] for z in plan.noise}
    known = {z: own for z, own in courses.items() if any(one.values for one in own)}
    rows = [
        {**row, "closed_form": expected(one) if course(one).values else None}
        for one in found
        for row in round_rows([one])
    ]
    return Results(
        "Figure 2(d), prostate: intermediaries over rounds",
        found,
        [_EXPLANATION, _table(found, known)],
        [*_claims(found, known), uncapped(rows)],
        [paper_shows("d")],
        {"figure2d": _picture(plan, found)},
        {"rounds.csv": rows},
    )


def _values(courses: Sequence[Course]) -> list[int]:
    return [v for one in courses for v in one.values]


def _table(found: Sequence[CellRun], courses: Mapping[float, Sequence[Course]]) -> str:
    def jumps(z: float) -> str:
        each = (f"{by:+d} in round {number}" for one in courses[z] for number, by in one.jumps)
        return ", ".join(each) or "none"

    def middle(z: float) -> str:
        values = _values(courses[z])
        return f"{median(values):g} ({min(values)}–{max(values)})"

    columns = (
        ("z", lambda z: f"{z:g}"),
        *privacy(lambda z: select(found, z=z)),
        ("v* closed form", lambda z: f"{expected(select(found, z=z)[0]):.1f}"),
        ("v after the start: median (least–most)", middle),
        ("changes of more than one", jumps),
        ("capped rounds", lambda z: f"{sum(one.capped for one in courses[z])} of {len(_values(courses[z]))}"),
    )
    return table(courses, columns)


def _claims(found: Sequence[CellRun], courses: Mapping[float, Sequence[Course]]) -> list[Claim]:
    """The paper has one change of more than one in its one set of runs, so each seed may have one."""
    every = [one for own in courses.values() for one in own if one.values]
    steps = sum(len(one.values) - 1 for one in every)
    changes = [abs(by) for one in every for _, by in one.jumps]
    seeds = max(map(len, courses.values()), default=1)
    apart = max((max(one.values) - min(one.values) for one in every), default=0)
    middles = {z: median(_values(own)) for z, own in courses.items()}
    away = max((abs(middles[z] - expected(select(found, z=z)[0])) for z in courses), default=0.0)
    return [
        Claim(
            "After the start v changes by at most one from a round to the next, but for one instance a seed",
            len(changes) <= seeds if steps else None,
            f"by more in {len(changes)} of {steps} steps, by at most {max(changes, default=1)}; within a run "
            f"the fewest and the most are at most {apart} apart" * bool(steps),
        ),
        rising("The median of v grows with z", middles, 1),
        Claim(
            "The median of v is less than one from the closed form v*",
            away < 1 if courses else None,
            f"at most {away:.1f}" * bool(courses),
        ),
    ]


def _picture(plan: Plan, found: Sequence[CellRun]) -> Picture:
    lines, levels = [], []
    for z, (colour, style) in zip(plan.noise, _STYLES[-len(plan.noise) :], strict=True):
        for one in select(found, z=z):
            rounds = [
                (line["round"], line["intermediaries"], line["intermediaries_capped"]) for line in one.rounds
            ]
            lines.append(Line([(number, v) for number, v, _ in rounds], style, colour, f"z = {z:g}"))
            if capped := [(number, v) for number, v, is_capped in rounds if is_capped]:
                label = "capped: the smallest hospital has no images for more"
                lines.append(Line(capped, "o", ORANGE, label, hollow=True))
        if runs := select(found, z=z):
            v = expected(runs[0])
            levels.append(Level(v, f"closed form v* = √(z√d/N) at z = {z:g}: {v:.1f}", ":", colour))
    panel = Panel(
        "round (the first only measures)",
        "intermediaries a hospital, v",
        lines,
        levels,
        title="Into how many intermediaries each hospital is split",
        y_range=(0, None),
    )
    return Picture([panel], (8, 4.6), legends=2)


def cells(plan: Plan) -> list[Cell]:
    return fedavg_cells(plan, (True,))


STUDY = Study(
    "figure2d", "Figure 2(d): intermediaries over rounds, beside the closed form", "prostate", cells, results,
    runs=3,
)  # fmt: skip
