"""Figures 2(a) to (d): points against the runs' own files, claims against runs made by hand."""

import math
from pathlib import Path

import pytest
from made_up_runs import made_up, rows, runs_of, smoke, tell

from silodp import InputError
from silodp.studies import figure2a, figure2b, figure2c, figure2d
from silodp.studies.planning import make_plan
from silodp.studies.study import CellRun, Plan

SMALL = make_plan("prostate", "small")


def test_a_has_n_times_the_runs_lambda() -> None:
    lines = rows(smoke("figure2a") / "rounds.csv")
    found = runs_of("figure2a")
    expected = [6 * line["lambda"] for one in found for line in one.rounds]
    assert [float(line["n_lambda"]) for line in lines] == pytest.approx(expected)
    assert [line["applied"] for line in lines] == ["True", "True", "False", "True"]
    # N·λ = z√d/(N·v²) where all norms are C; their mean is within a factor of two of it
    for line in lines:
        closed = 0.5 * math.sqrt(found[0].summary["parameters"]) / 6 / int(line["v"]) ** 2
        assert 1 / 2 < float(line["n_lambda"]) / closed < 2


def ratios(folder: Path, without: list[float], with_: list[float], capped: bool = False) -> list[CellRun]:
    """N·λ of the three z; the measuring round's is absurd, and must not count."""
    found = []
    for place, z in enumerate(SMALL.noise):
        alone = [{"lambda": without[place] / 6 * factor} for factor in (0.5, 1, 3)]
        found.append(made_up(folder, SMALL.cell(z, False, 0), alone))
        first = {"applied": False, "lambda": 1e6}
        after = {"lambda": with_[place] / 6, "intermediaries": 4, "intermediaries_capped": capped}
        found.append(made_up(folder, SMALL.cell(z, True, 0), [first, after, after, after]))
    return found


def test_a_claims(tmp_path: Path) -> None:
    found = ratios(tmp_path, [5, 10, 15], [1.1, 0.8, 1.3])
    text, _ = told = tell(figure2a.STUDY, tmp_path, SMALL, found)
    assert set(told.holds) == {True}
    assert "| at most 1.30: 1.10 at z = 0.3, 0.80 at z = 0.5, 1.30 at z = 0.7 |" in text
    assert "3.00 times the smallest without, 1.62 with" in text
    # z√d/N with d = 10,000; quartiles of 0.5, 1, 3 times the median
    assert "| 0.3 | 20.0 | 20.0 | 10.0 | 4 | 5.00 | 5.00 (3.75–10.00) | 1.10 (1.10–1.10) |" in text
    assert "v is capped in 0 of 9 rounds" in text
    found = ratios(tmp_path, [5, 15, 10], [1.1, 0.3, 1.3], capped=True)
    told = tell(figure2a.STUDY, tmp_path, SMALL, found)
    assert set(told.holds) == {False}
    assert told.claims[1].measured.startswith("at most 3.33")  # 1/0.3
    assert told.claims[-1].measured == "v is capped in 9 of 9 rounds"


def test_a_some_runs_alone_are_written_too(tmp_path: Path) -> None:
    """As with --only: one z shows no trend."""
    one = made_up(tmp_path, SMALL.cell(0.5, True, 0), [{"lambda": 0.2}])
    told = tell(figure2a.STUDY, tmp_path, SMALL, [one])
    assert "| 0.5 | – | 20.0 | 10.0 | 1 | 8.33 | – | 1.20 (1.20–1.20) |" in told.text
    assert told.holds == [None, True, None, True]


def test_b_has_the_runs_cosines() -> None:
    folder, found = smoke("figure2b"), runs_of("figure2b")
    expected = [line["cosine_std"] for one in found for line in one.rounds]
    assert [float(line["cosine_std"]) for line in rows(folder / "rounds.csv")] == expected
    assert all(0 < value < 1 for value in expected)
    last = found[1].rounds[1]["cosine_std"]  # one round that counts with intermediaries: the second
    assert f"| {last:.3f} ({last:.3f}–{last:.3f}) |" in (folder / "table.md").read_text()


def cosines(folder: Path, plan: Plan, without: list[float], with_: list[float]) -> list[CellRun]:
    """Two seeds of one z make four rounds; the measuring round must not count."""
    found = []
    for seed in plan.seeds:
        for place, z in enumerate(plan.noise):
            alone = [{"cosine_std": without[place] + 0.01 * sign} for sign in (-1, 1)]
            found.append(made_up(folder, plan.cell(z, False, seed), alone))
            split = [{"applied": False, "cosine_std": 0.9}, {"cosine_std": with_[place], "intermediaries": 3}]
            found.append(made_up(folder, plan.cell(z, True, seed), split))
    return found


def test_b_claims(tmp_path: Path) -> None:
    plan = make_plan("prostate", "small", seeds=2)
    found = cosines(tmp_path, plan, [0.3, 0.25, 0.2], [0.1, 0.1, 0.1])
    told = tell(figure2b.STUDY, tmp_path, plan, found)
    assert told.holds == [True, True]
    assert (
        "| 0.3 | 20.0 | 20.0 | 10.0 | 3 | 0.300 (0.290–0.310) | 0.100 (0.100–0.100) | -0.200 |" in told.text
    )
    assert "2 seeds" in told.text
    told = tell(figure2b.STUDY, tmp_path, plan, cosines(tmp_path, plan, [0.3, 0.2, 0.25], [0.1, 0.25, 0.3]))
    assert told.holds == [False, False]
    assert told.claims[0].measured == "1 of 3: +0.200 at z = 0.3, -0.050 at z = 0.5, -0.050 at z = 0.7"


def test_b_a_round_without_cosines_is_left_out(tmp_path: Path) -> None:
    """The file has null where a number is not finite."""
    lines = [{"cosine_std": None}, {"cosine_std": 0.2}]
    one = made_up(tmp_path, SMALL.cell(0.5, False, 0), lines)
    told = tell(figure2b.STUDY, tmp_path, SMALL, [one])
    assert "| 0.5 | 20.0 | – | – | – | 0.200 (0.200–0.200) | – | – |" in told.text
    assert told.holds == [None, None]


def test_c_fewer_train_and_all_are_tested() -> None:
    cells = figure2c.cells(SMALL)
    assert [cell.experiment.participation.members for cell in cells] == [2, 2, 3, 3, 4, 4, 5, 5, None, None]
    assert {cell.experiment.privacy.noise_multiplier for cell in cells} == {0.3}
    found = runs_of("figure2c")
    folder = smoke("figure2c")
    tested = [set(one.summary["test"]["last"]["hospitals"]) for one in found]
    assert all(hospitals == tested[-1] and len(hospitals) == 6 for hospitals in tested)
    assert [len(one.rounds[0]["participants"]) for one in found] == [2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    lines = rows(folder / "results.csv")
    assert [line["hospitals"] for line in lines] == [n for n in "23456" for _ in range(2)]
    assert all((int(line["v"]) > 1) == (line["intermediaries"] == "with") for line in lines)
    assert "The first N of 6 hospitals train" in (folder / "table.md").read_text()


def test_c_other_cohorts_have_other_numbers_of_hospitals() -> None:
    def numbers(hospitals: int) -> list[int]:
        plan = Plan("prostate", "small", SMALL.base, (0,))
        vars(plan)["training_sizes"] = (9,) * hospitals
        found = [cell.experiment.participation.members or hospitals for cell in figure2c.cells(plan)]
        assert found[::2] == found[1::2]
        return found[::2]

    assert numbers(2) == [2]
    assert numbers(3) == [2, 3]
    assert numbers(6) == [2, 3, 4, 5, 6]
    assert numbers(20) == [2, 6, 11, 16, 20]
    with pytest.raises(InputError, match="two or more"):
        numbers(1)


def dices(folder: Path, without: dict[int, float], with_: dict[int, float], seeds: int = 1) -> list[CellRun]:
    """The Dice of N hospitals; of several seeds the last is the odd one out by ±0.01."""
    found = []
    for cell in figure2c.cells(make_plan("prostate", "small", seeds=seeds)):
        members = cell.experiment.participation.members or 6
        dice = (with_ if cell.columns["intermediaries"] == "with" else without).get(members)
        if dice is not None:
            dice += 0.01 * (2 * int(cell.columns["seed"]) - 1) * (seeds > 1)
            found.append(made_up(folder, cell, [{}], members=members, test={"dice": dice}))
    return found


@pytest.mark.parametrize(
    ("without", "with_", "holds", "says"),
    [
        (
            {2: 0.1, 6: 0.4},
            {2: 0.6, 6: 0.7},
            [True, True, True],
            [
                "| 0.400 with 6 hospitals, 0.100 with 2 (-0.300, 75% lost) |",
                "| 0.700 with 6 hospitals, 0.600 with 2 (-0.100, 14% lost) |",
                # The paper prints Dice for all six at z = 0.3 only, in its table 1.
                "| 6 | 0.1 | 20.0 | 20.0 | 10.0 | 1 | 0.400 | 0.700 | +0.300 | 0.414 ± 0.039 | 0.706 ± 0.01",
                "| 2 | 0.1 | 20.0 | 20.0 | 10.0 | 1 | 0.100 | 0.600 | +0.500 | – | – |",
            ],
        ),
        ({2: 0.3, 6: 0.4}, {2: 0.3, 6: 0.7}, [True, False, False], []),
        ({2: 0.5, 6: 0.4}, {2: 0.7, 6: 0.7}, [False, None, True], []),
        ({2: 0.1}, {}, [None] * 3, ["| 2 | 0.1 | 20.0 | – | – | – | 0.100 | – | – | – | – |"]),
        (
            {2: 0.1, 4: math.nan, 6: 0.4},
            {2: 0.6, 4: 0.5, 6: 0.7},
            [True, True, True],
            [
                "| 2 of 2: +0.500 at N = 2, undefined at N = 4, +0.300 at N = 6 |",
                "| 1 | – (0 of 1 seeds defined) | 0.500 | – | – | – |",
            ],
        ),
    ],
    ids=["stable", "not stable", "nothing lost, so no smaller part of it", "one run", "undefined"],
)
def test_c_claims(
    tmp_path: Path,
    without: dict[int, float],
    with_: dict[int, float],
    holds: list[bool | None],
    says: list[str],
) -> None:
    told = tell(figure2c.STUDY, tmp_path, SMALL, dices(tmp_path, without, with_))
    assert told.holds == holds
    assert [line for line in says if line not in told.text] == []
    assert "nan" not in told.text


def test_c_several_seeds(tmp_path: Path) -> None:
    plan = make_plan("prostate", "small", seeds=2)
    found = dices(tmp_path / "seeds", {2: 0.1, 6: 0.4}, {2: 0.6, 6: 0.7}, seeds=2)
    assert "| 0.100 ± 0.014 | 0.600 ± 0.014 | +0.500 |" in tell(figure2c.STUDY, tmp_path, plan, found).text


def test_d_has_the_runs_v_beside_the_closed_form() -> None:
    assert [cell.columns["intermediaries"] for cell in figure2d.STUDY.cells(SMALL)] == ["with"] * 3
    folder, (one,) = smoke("figure2d"), runs_of("figure2d")
    lines = rows(folder / "rounds.csv")
    assert [int(line["v"]) for line in lines] == [line["intermediaries"] for line in one.rounds]
    assert lines[0]["v"] == "1"
    closed = math.sqrt(0.5 * math.sqrt(one.summary["parameters"]) / 6)
    assert all(float(line["closed_form"]) == pytest.approx(closed) for line in lines)
    assert f"| {closed:.1f} |" in (folder / "table.md").read_text()


def courses(
    folder: Path, plan: Plan, counts: dict[float, list[int]], capped: tuple[int, ...] = ()
) -> list[CellRun]:
    """v after the measuring round, whose v of 1 must not count; `capped` are rounds."""
    found = []
    for cell in figure2d.STUDY.cells(plan):
        if (z := float(cell.columns["z"])) in counts:
            lines = [
                {"applied": number > 1, "intermediaries": v, "intermediaries_capped": number in capped}
                for number, v in enumerate([1, *counts[z]], 1)
            ]
            found.append(made_up(folder, cell, lines))
    return found


def test_d_the_papers_course(tmp_path: Path) -> None:
    """One change by two at the largest z, as in the paper. d = 10,000 and N = 6: v* = √(z·100/6)."""
    found = courses(tmp_path, SMALL, {0.3: [2, 2, 3, 2], 0.5: [3, 3, 3, 3], 0.7: [4, 6, 5, 5]})
    text, (steady, grows, close, _) = told = tell(figure2d.STUDY, tmp_path, SMALL, found)
    assert told.holds == [True, True, False, True]
    assert steady.measured.startswith(
        "by more in 1 of 9 steps, by at most 2; within a run the fewest and the"
    )
    assert steady.measured.endswith("at most 2 apart")
    assert grows.measured == "2.0 at z = 0.3, 3.0 at z = 0.5, 5.0 at z = 0.7"
    assert close.measured == "at most 1.6"  # 5 and √(70/6) = 3.4
    assert "| 0.7 | 20.0 | 10.0 | 3.4 | 5 (4–6) | +2 in round 3 | 0 of 4 |" in text
    assert "| 0.5 | 20.0 | 10.0 | 2.9 | 3 (3–3) | none | 0 of 4 |" in text


def test_d_another_course(tmp_path: Path) -> None:
    counts = {0.3: [6, 3, 6, 6], 0.5: [6, 6, 6, 6], 0.7: [4, 4, 4, 4]}
    told = tell(figure2d.STUDY, tmp_path, SMALL, courses(tmp_path, SMALL, counts, capped=(3, 4)))
    assert told.holds == [False] * 4
    assert told.claims[0].measured.startswith("by more in 2 of 9 steps, by at most 3")
    assert told.claims[-1].measured == "v is capped in 6 of 12 rounds"
    assert "-3 in round 3, +3 in round 4" in told.text
    near = courses(tmp_path, SMALL, {0.3: [2, 2], 0.5: [3, 3], 0.7: [3, 3]})
    assert tell(figure2d.STUDY, tmp_path, SMALL, near).holds[2] is True  # 2.2, 2.9 and 3.4


def test_d_one_instance_a_seed(tmp_path: Path) -> None:
    plan, counts = make_plan("prostate", "small", seeds=2), {0.3: [2, 2], 0.5: [3, 3], 0.7: [4, 6]}
    assert figure2d.results(plan, courses(tmp_path, plan, counts)).claims[0].holds is True
    more = courses(tmp_path, plan, counts | {0.5: [3, 5]})
    steady = figure2d.results(plan, more).claims[0]
    assert (steady.holds, steady.measured[:22]) == (False, "by more in 4 of 6 step")


@pytest.mark.parametrize("counts", [[3], []])
def test_d_too_few_rounds_say_nothing(tmp_path: Path, counts: list[int]) -> None:
    found = courses(tmp_path, SMALL, {0.5: counts})
    assert tell(figure2d.STUDY, tmp_path, SMALL, found).holds[0] is None
