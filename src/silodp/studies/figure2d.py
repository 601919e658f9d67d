"""Figure 2(d): the number of intermediaries v from round to round, beside its closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median

from silodp.runs.schema import RoundRecord
from silodp.studies.claims import Claim, rising
from silodp.studies.columns import privacy, select, table
from silodp.studies.output import Results
from silodp.studies.over_rounds import expected_v, fedavg_cells, paper_shows, round_rows, uncapped
from silodp.studies.pictures import BLUE, ORANGE, Level, Line, Panel, Picture
from silodp.studies.study import CellRun, Plan, Study

_STYLES = (("#56B4E9", "o-"), (BLUE, "s-"), ("#000000", "^-"))
"""Colour and style of the lines, from the least noise to the most."""

_EXPLANATION = (
    "Intermediaries a hospital is split into, in each round, under the adaptive rule v ← ⌊v·√(N·λ)⌋. "
    "The first round only measures, with v = 1; «after the start» is from the second round on. v* = "
    "√(z√d/N) is where the rule settles if C is the median norm; it needs no data. A capped round is "
    "one in which the smallest hospital has too few images for the v of the rule."
)


Course = list[RoundRecord]
"""The rounds of one run from the second on: the first only measures."""


def _jumps(course: Course) -> list[tuple[int, int]]:
    """(round, change) wherever v changes by more than one from the round before."""
    steps = [
        (after["round"], after["intermediaries"] - before["intermediaries"])
        for before, after in pairwise(course)
    ]
    return [(number, by) for number, by in steps if abs(by) > 1]


def _values(courses: Sequence[Course]) -> list[int]:
    return [line["intermediaries"] for course in courses for line in course]


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    runs = {z: own for z in plan.noise if (own := select(found, z=z))}
    courses = {
        z: [[line for line in one.rounds if line["applied"]] for one in own] for z, own in runs.items()
    }
    known = {z: own for z, own in courses.items() if any(own)}
    closed_form = {z: expected_v(own[0]) for z, own in runs.items()}
    rows = [{**row, "closed_form": expected_v(one)} for one in found for row in round_rows([one])]
    return Results(
        "Figure 2(d), prostate: intermediaries over rounds",
        found,
        [_EXPLANATION, _table(runs, known, closed_form)],
        [*_claims(known, closed_form), uncapped(rows)],
        [paper_shows("d")],
        {"figure2d": _picture(plan, runs, closed_form)},
        {"rounds.csv": rows},
    )


def _table(
    runs: Mapping[float, Sequence[CellRun]],
    courses: Mapping[float, Sequence[Course]],
    closed_form: Mapping[float, float],
) -> str:
    def jumps(z: float) -> str:
        each = (f"{by:+d} in round {number}" for course in courses[z] for number, by in _jumps(course))
        return ", ".join(each) or "none"

    def middle(z: float) -> str:
        values = _values(courses[z])
        return f"{median(values):g} ({min(values)}–{max(values)})"

    def capped(z: float) -> str:
        rounds = [line["intermediaries_capped"] for course in courses[z] for line in course]
        return f"{sum(rounds)} of {len(rounds)}"

    columns = (
        ("z", lambda z: f"{z:g}"),
        *privacy(runs.__getitem__),
        ("v* closed form", lambda z: f"{closed_form[z]:.1f}"),
        ("v after the start: median (least–most)", middle),
        ("changes of more than one", jumps),
        ("capped rounds", capped),
    )
    return table(courses, columns)


def _claims(courses: Mapping[float, Sequence[Course]], closed_form: Mapping[float, float]) -> list[Claim]:
    """The paper has one change of more than one in its one set of runs, so each seed may have one."""
    every = [course for own in courses.values() for course in own if course]
    steps = sum(len(course) - 1 for course in every)
    changes = [abs(by) for course in every for _, by in _jumps(course)]
    seeds = max(map(len, courses.values()), default=1)
    apart = max((max(_values([course])) - min(_values([course])) for course in every), default=0)
    middles = {z: median(_values(own)) for z, own in courses.items()}
    away = max((abs(middle - closed_form[z]) for z, middle in middles.items()), default=0.0)
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


def _picture(
    plan: Plan, runs: Mapping[float, Sequence[CellRun]], closed_form: Mapping[float, float]
) -> Picture:
    lines, levels = [], []
    styles = dict(zip(plan.noise, _STYLES[-len(plan.noise) :], strict=True))
    for z, own in runs.items():
        colour, style = styles[z]
        for one in own:
            points = [(line["round"], line["intermediaries"]) for line in one.rounds]
            capped = [
                point for point, line in zip(points, one.rounds, strict=True) if line["intermediaries_capped"]
            ]
            lines.append(Line(points, style, colour, f"z = {z:g}"))
            if capped:
                label = "capped: the smallest hospital has no images for more"
                lines.append(Line(capped, "o", ORANGE, label, hollow=True))
        label = f"closed form v* = √(z√d/N) at z = {z:g}: {closed_form[z]:.1f}"
        levels.append(Level(closed_form[z], label, ":", colour))
    panel = Panel(
        "round (the first only measures)",
        "intermediaries a hospital, v",
        lines,
        levels,
        title="Into how many intermediaries each hospital is split",
        y_range=(0, None),
    )
    return Picture([panel], (8, 4.6), legends=2)


STUDY = Study(
    "figure2d",
    "Figure 2(d): intermediaries over rounds, beside the closed form",
    "prostate",
    partial(fedavg_cells, splits=(True,)),
    results,
    runs=3,
)
