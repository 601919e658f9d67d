"""A run's privacy read back: right figures, and nothing missing, moved or forged goes unnoticed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silodp import Cohort, Experiment, train
from silodp.errors import InputError
from silodp.privacy.events import Event
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.ledger import Ledger, read_ledger
from silodp.runs.statement import read_statement

SMALL: dict[str, Any] = {"rounds": 2, "model": {"features": 2, "levels": 1}, "local": {"batch_size": 4}}


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def forge(run: Path, change: Callable[[list[Event]], list[Event]]) -> None:
    """Rewrites the ledger with a valid chain: what somebody with the program can do."""
    path = run / "ledger.jsonl"
    events = change(read_ledger(path).events)
    path.unlink()
    (run / "checkpoint.pt").unlink()  # it knows the old chain
    Ledger(path).record(events)


def test_a_finished_run_is_in_order_and_its_figures_are_the_closed_form(run: Path) -> None:
    statement = read_statement(run)
    assert statement.problems == ()
    assert (statement.rounds, statement.releases, statement.unprotected) == (4, 8, ())
    for unit, moved in (("hospital", 2), ("intermediary", 1)):
        for relation, times in (("add-or-remove", 1), ("replace-one", 2)):
            mu = 2 * moved * times / 0.5  # √4 rounds
            seen = statement.figures[unit, relation].epsilon  # type: ignore[index]
            assert seen == pytest.approx(gaussian_epsilon(mu, 0.1), rel=1e-6)
    assert [number for number, *_ in statement.by_round] == [1, 2, 3, 4]
    for number, hospital, intermediary in statement.by_round:
        assert hospital == pytest.approx(gaussian_epsilon(number**0.5 * 4, 0.1), rel=1e-6)
        assert intermediary == pytest.approx(gaussian_epsilon(number**0.5 * 2, 0.1), rel=1e-6)
    told, summary = statement.to_dict(), json.loads((run / "summary.json").read_text())
    assert told["delta"] == summary["delta"]
    assert told["replace_one"] == summary["epsilon"]["replace_one"]
    for unit in ("hospital", "intermediary"):
        assert told["epsilon"][unit] == summary["epsilon"][unit]


def test_reading_changes_no_file(run: Path) -> None:
    with (run / "ledger.jsonl").open("a") as file:
        file.write('{"round": 5, "rel')
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    statement = read_statement(run)
    assert statement.torn
    assert statement.rounds == 4
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_changed_line_is_refused(run: Path) -> None:
    path = run / "ledger.jsonl"
    path.write_text(path.read_text().replace('"contributions": 2', '"contributions": 1', 1))
    with pytest.raises(InputError, match="line 1: this line or one before it was changed"):
        read_statement(run)


def test_a_cut_end_is_noticed(run: Path) -> None:
    path = run / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    problems = " ".join(read_statement(run).problems)
    assert "releases that the checkpoint knows of are missing at the end" in problems
    assert "metrics.jsonl has round 4, the ledger does not" in problems


def edited(**fields: Any) -> Callable[[list[Event]], list[Event]]:
    return lambda events: [
        replace(event, **fields) if (event.round, event.released) == (2, "model update") else event
        for event in events
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda events: [e for e in events if e.round != 2], "missing before round 3: 2"),
        (lambda events: [e for e in events if e.round != 1], "missing before round 2: 1"),
        (lambda events: [*events[2:], *events[:2]], "missing before round 2: 1"),
        (lambda events: [e for e in events if e.released == "model update"], "«clip quantile» is missing"),
        (edited(noise_multiplier=5.0), "round 2: «model update» is not what the experiment asks for"),
        (edited(protected=False), "round 2: «model update» is not what the experiment asks for"),
        (edited(contributions=1), "round 2: metrics.jsonl has another v than the ledger"),
        (lambda events: [*events, edited(round=7)(events)[2]], "missing before round 7: 5, 6"),
    ],
)
def test_a_forged_ledger_does_not_fit_the_run(
    run: Path, change: Callable[[list[Event]], list[Event]], message: str
) -> None:
    forge(run, change)
    assert any(message in problem for problem in read_statement(run).problems), read_statement(run).problems


@pytest.mark.parametrize(
    "fields", [{"contributions": 1}, {"steps": 1}, {"passes": 2}], ids=["images in a step", "steps", "passes"]
)
def test_at_sample_level_the_sizes_say_what_a_ledger_must_hold(
    fields: dict[str, int], cohort: Cohort, tmp_path: Path
) -> None:
    """12 images a hospital in batches of four: three steps of four images, one pass."""
    experiment = Experiment.build(SMALL, {"privacy.level": "sample"})
    run = train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu").folder
    assert read_statement(run).problems == ()
    event = read_ledger(run / "ledger.jsonl").events[0]
    assert (event.contributions, event.steps, event.passes) == (4, 3, 1)
    forge(run, edited(**fields))
    found = read_statement(run).problems
    assert "round 2: «model update» is not what the experiment asks for" in found


def test_a_round_released_twice_is_counted_twice_and_named(run: Path) -> None:
    before = read_statement(run)
    for name in ("summary.json", "model.safetensors"):  # a run that is not over
        (run / name).unlink()
    forge(run, lambda events: [*events, edited(digest="other")(events)[2]])
    after = read_statement(run)
    assert after.redone == (2,)
    assert after.problems == ()
    cell = ("hospital", "add-or-remove")
    assert after.figures[cell].epsilon > before.figures[cell].epsilon  # type: ignore[index]


def test_unprotected_statistics_are_named(cohort: Cohort, tmp_path: Path) -> None:
    experiment = Experiment.build(SMALL, {"clipping.rule": "median", "intermediaries.rule": "adaptive"})
    statement = read_statement(train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu").folder)
    assert statement.unprotected == ("median norm", "noise ratio")
    assert statement.problems == ()
    assert not statement.to_dict()["covers_everything"]


def test_a_folder_without_a_run_or_without_a_ledger_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run is there"):
        read_statement(tmp_path)
    (run / "ledger.jsonl").unlink()
    with pytest.raises(InputError, match="the ledger is missing"):
        read_statement(run)
    (run / "experiment.toml").write_text("rounds = [")
    with pytest.raises(InputError, match=r"run/experiment\.toml: not valid TOML"):
        read_statement(run)


def test_the_budget_is_read_back_at_its_own_delta_and_neighbours(cohort: Cohort, tmp_path: Path) -> None:
    budget = {"epsilon": 1e4, "delta": 0.001, "neighbours": "replace-one"}
    experiment = Experiment.build(SMALL | {"intermediaries": {"rule": "fixed", "count": 2}, "budget": budget})
    run = train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu").folder
    expected = gaussian_epsilon(2**0.5 * 2 * 2 / 0.5, 0.001)
    assert read_statement(run).budget_spent == pytest.approx(expected, rel=1e-6)


def test_a_run_at_work_is_in_order_at_every_moment(run: Path) -> None:
    """The ledger may be ahead of the other files by a round, or by half of one; that is no disorder."""
    for name in ("checkpoint.pt", "summary.json", "model.safetensors"):
        (run / name).unlink()
    metrics, ledger = run / "metrics.jsonl", run / "ledger.jsonl"
    rounds, events = (path.read_text().splitlines(keepends=True) for path in (metrics, ledger))
    for written in range(1, len(events) + 1):
        ledger.write_text("".join(events[:written]))
        metrics.write_text("".join(rounds[: (written - 1) // 2]))
        assert read_statement(run).problems == ()


def test_another_delta_written_into_the_experiment_is_noticed(run: Path) -> None:
    path = run / "experiment.toml"
    path.write_text(path.read_text().replace("delta = 0.1", "delta = 0.9"))
    assert read_statement(run).problems == ("experiment.toml is not what the run was started with",)


def test_a_forged_chance_of_taking_part_is_noticed(cohort: Cohort, tmp_path: Path) -> None:
    """One of three as if it were one of six: ε would be smaller."""
    tree = SMALL | {"intermediaries": {"rule": "fixed"}, "participation": {"rule": "poisson", "rate": 1 / 3}}
    run = train(Experiment.build(tree), cohort=cohort, out=tmp_path / "run", device="cpu").folder
    honest = read_statement(run)
    assert honest.problems == ()
    forge(run, lambda events: [replace(event, sampling_rate=1 / 6) for event in events])
    forged = read_statement(run)
    assert forged.epsilon["hospital"] < honest.epsilon["hospital"]  # type: ignore[operator]
    for number in (1, 2):
        assert f"round {number}: «model update» is not what the experiment asks for" in forged.problems


@pytest.mark.parametrize("rule", ["all", "fraction"])
def test_a_run_with_members_is_in_order_and_says_how_many_trained(
    rule: str, cohort: Cohort, tmp_path: Path
) -> None:
    """Half of two is a chance of 1/2 to take part; half of the cohort's three would be 2/3."""
    who = {"members": 2, "rule": rule} | ({"rate": 0.5} if rule == "fraction" else {})
    experiment = Experiment.build(SMALL | {"intermediaries": {"rule": "fixed"}, "participation": who})
    statement = read_statement(train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu").folder)
    assert statement.problems == ()
    told = statement.to_dict()
    assert (told["members"], told["hospitals"]) == (2, 3)
    assert any("do not train" in note for note in told["not_covered_by_epsilon"])
    if rule == "all":
        mu = 2**0.5 / 0.5
        assert told["epsilon"]["hospital"] == pytest.approx(gaussian_epsilon(mu, 0.1), rel=1e-6)
