"""Charts as drawings: scales, gaps, labels, words. How they look is tested in a browser (test_page.py)."""

import math
import re
import xml.etree.ElementTree as xml
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from silodp.report.chart import Chart, Line, draw, is_empty, known

NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-(10**6), 10**6))


def chart(*lines: Line, **options: object) -> Chart:
    return Chart("Title", "About.", "unit", lines, **options)  # type: ignore[arg-type]


def line(*values: object, **options: object) -> Line:
    return Line("a", known(enumerate(values, start=1)), **options)  # type: ignore[arg-type]


def numbers(svg: str, pattern: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, svg)]


def test_what_is_no_number_is_a_gap() -> None:
    points = known([(1, 1.0), (2, math.nan), (3, math.inf), (4, None), (5, "x"), (6, 2)])
    assert points == ((1, 1.0), (2, None), (3, None), (4, None), (5, None), (6, 2.0))
    svg = draw(chart(Line("a", (*points, (7, 3.0)))))
    assert svg.count("<circle") == 3
    paths = re.findall(r'<path class="line[^"]*" d="([^"]*)"', svg)
    assert [path.count("L") for path in paths] == [1]  # from 6 to 7; the point at 1 stands alone
    assert draw(chart(line(0.0, 1.0, 10.0), scale="log")).count("<circle") == 2


def test_a_chart_without_a_value_is_empty() -> None:
    """A logarithmic scale has no place for zero."""
    assert is_empty(chart())
    assert is_empty(chart(line(None, math.nan)))
    assert is_empty(chart(Line("guess", ((0, 0.0), (1, 1.0)), "reference")))
    assert is_empty(chart(line(0.0, -1.0), scale="log"))
    assert not is_empty(chart(line(0.0, -1.0)))


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_labels_do_not_cover_each_other_and_belong_to_their_lines(value: float) -> None:
    points = known([(1, 0.5), (2, value)])
    lines = [Line(name, points, style=number, label=name) for number, name in enumerate("ABCDE")]
    svg = draw(chart(*lines, y_range=(0.0, 1.0)))
    places = numbers(svg, r'y="(-?[\d.]+)" text-anchor="start" class="end')
    assert len(places) == 5
    assert all(later - earlier >= 13 for earlier, later in pairwise(places))
    assert places[0] >= 12
    assert places[-1] <= 200
    assert re.findall(r'class="end (s\d)">(\w)<', svg) == [(f"s{n}", name) for n, name in enumerate("ABCDE")]


def test_more_runs_than_colours_still_have_one() -> None:
    svg = draw(chart(line(1.0, 2.0, style=9, label="J")))
    assert "bold s2" in svg


def test_it_is_told_to_those_who_cannot_see_it() -> None:
    svg = draw(chart(line(0.25, 0.5, 0.75), levels=((1.0, "budget"),)))
    (label,) = re.findall(r'aria-label="([^"]*)"', svg)
    assert label == "Title. a: from 0.25 at round 1 to 0.75 at round 3; budget: 1"


def test_names_are_escaped() -> None:
    svg = draw(Chart("<T>", "", "<u>", (Line('<script>"', known([(1, 1.0), (2, 2.0)]), label="<L>"),)))
    assert "<script" not in svg
    assert "&lt;script&gt;&#34;" in svg
    xml.fromstring(svg)


@given(st.floats(1e-3, 1e4), st.floats(1, 30), st.sampled_from(["linear", "log"]), st.integers(1, 5))
@example(2.3, 3.7 / 2.3, "log", 2)  # between two round numbers
@example(2.3, 1.0, "log", 1)  # a single round
@example(7.0, 1.0, "log", 5)  # a constant
def test_values_can_be_read_off_whatever_they_are(low: float, factor: float, scale: str, count: int) -> None:
    """A point's value follows from its height and two labels of the axis, to the rounding of a drawing."""
    values = [low * factor ** (number / max(1, count - 1)) for number in range(count)]
    svg = draw(chart(line(*values), scale=scale))
    ticks = re.findall(r'y="(-?[\d.]+)" text-anchor="end">([\d.,e+-]+)<', svg)
    labels = [float(text.replace(",", "")) for _, text in ticks]
    assert len(labels) >= 2
    place = math.log10 if scale == "log" else float
    (first, last), (bottom, top) = (
        labels[:: len(labels) - 1],
        [float(y) - 4 for y, _ in ticks][:: len(ticks) - 1],
    )
    heights = numbers(svg, r'cy="([\d.]+)"')
    assert len(heights) == count
    for height, value in zip(heights, values, strict=True):
        share = (place(value) - place(first)) / (place(last) - place(first))
        assert height == pytest.approx(bottom + share * (top - bottom), abs=0.5 + 0.2 * abs(share))


@given(st.lists(NUMBERS, min_size=1, max_size=40), st.sampled_from(["linear", "log", "whole"]))
def test_whatever_the_values_the_drawing_is_well_formed_and_within_its_frame(
    values: list[object], scale: str
) -> None:
    drawn = chart(line(*values, label="x"), scale=scale, levels=((2.0, "level"),))
    if is_empty(drawn):
        return
    svg = draw(drawn)
    xml.fromstring(svg)
    assert not re.search(r"nan|inf", svg, re.IGNORECASE)
    for places, most in (
        (numbers(svg, r'cx="(-?[\d.e+]+)"'), 360),
        (numbers(svg, r'cy="(-?[\d.e+]+)"'), 220),
    ):
        assert all(0 <= place <= most for place in places)
