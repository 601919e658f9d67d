"""`silodp bench`: its figures are those of a machine, so what is asserted is that they are there."""

import json
import math

import pytest
from conftest import command_line as silodp
from conftest import in_a_process

from silodp.bench.bare import BareLoop
from silodp.bench.comparison import SETTINGS, Comparison, cores, fitting, on_cpu
from silodp.bench.federated import FederatedRounds
from silodp.bench.referee import Contestant, Row, bare, take_turns
from silodp.bench.workloads import SMOKE, TINY, UNET, Workload


def test_the_command_prints_rows_with_figures() -> None:
    done = in_a_process("bench", "--quick", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["machine"]["cores"] >= 1
    (comparison,) = found["comparisons"]
    limit, own = comparison["rows"]
    assert (limit["name"], own["name"]) == ("bare loop, 1 process of 1 thread", "silodp, as it comes")
    assert limit["ratio"] == 1
    for row in comparison["rows"]:
        for figure in ("ratio", "seconds", "images_per_second", "setup_seconds"):
            assert row[figure] > 0
            assert math.isfinite(row[figure])
        assert row["steps"] == SMOKE["tiny"].steps
    assert comparison["best"] == {}


def test_a_table_names_everyone_and_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(name, (2.0,), (seconds,), (seconds / 0.1,), 4, 2**20) for name, seconds in ROWS.items()]
    settings = {f"silodp, {name}": each for name, each in SETTINGS.items()}
    made_up = Comparison(SMOKE["tiny"], "cpu", tuple(rows), settings)
    monkeypatch.setattr("silodp.bench.comparison.bench", lambda *_: [made_up])
    said = silodp("bench", "--device", "cpu").stdout
    for name in ROWS:
        assert name in " ".join(said.split())
    assert "best here: silodp, threads = 1, 2.00 times the limit; --set threads=1" in said
    assert f"{SMOKE['tiny'].images_a_round / 0.2:,.0f}" in said


ROWS = {"the limit": 0.1, "silodp, as it comes": 0.3, "silodp, threads = 1": 0.2}


@pytest.mark.parametrize(
    ("words", "message"), [(["tpu"], "--device tpu: choose auto, cpu or cuda"), (["cuda"], "finds no GPU")]
)
def test_a_device_that_is_not_there(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = silodp("bench", "--device", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize("workload", SMOKE.values(), ids=SMOKE.keys())
def test_both_train_the_same_steps_on_the_same_images(workload: Workload) -> None:
    loop, rounds = BareLoop(workload), FederatedRounds(workload)
    try:
        loop.round()
        rounds.round()
        assert loop.steps == rounds.steps == workload.steps
        seen = sum(len(images) for images, _ in loop._steps.batches)
        assert seen == sum(rounds.parts.federation.hospitals.values()) == workload.images_a_round
        bound, count = rounds.parts.experiment.clipping.first_bound(), workload.intermediaries
        assert (bound, rounds.parts.experiment.intermediaries.asked) == (1.0, count)
        assert not rounds.parts.experiment.local.keeps_state
    finally:
        rounds.close()


def test_shares_of_the_bare_loop_are_the_whole() -> None:
    shares = [BareLoop(SMOKE["unet"], part=part, parts=3).steps for part in range(3)]
    assert sum(shares) == SMOKE["unet"].steps
    assert max(shares) - min(shares) <= UNET.images // UNET.batch


def test_the_workloads_are_those_of_the_documentation() -> None:
    assert (TINY.steps, TINY.images_a_round) == (200, 1600)
    assert (UNET.steps, UNET.images_a_round) == (48, 384)
    assert sum(one.numel() for one in TINY.make_network().parameters()) == 7528
    assert Workload(**json.loads(json.dumps(UNET.to_dict()))) == UNET


def test_a_slow_machine_gets_a_smaller_round() -> None:
    assert fitting(TINY, seconds_a_step=1.0).intermediaries == 1
    assert TINY.with_steps(45).intermediaries == 2
    assert UNET.with_steps(10**6) == UNET


def test_the_limit_is_a_process_a_core() -> None:
    contestants, settings = on_cpu(TINY, channels_last=True, quick=False)
    assert len(contestants[0].commands) == min(cores(), TINY.parts)
    assert [one.name for one in contestants[-len(settings) :]] == list(settings)


def test_a_contestant_that_fails_is_named_with_what_it_said() -> None:
    broken = bare(SMOKE["tiny"], 1, 1)
    broken.commands = [[*broken.commands[0][:-1], "{}"]]
    with pytest.raises(RuntimeError, match=r"bare loop, 1 process of 1 thread: a process ended \(KeyError"):
        take_turns([broken], 1)
    silent = Contestant("silent", [["true"]])
    with pytest.raises(RuntimeError, match=r"silent: a process ended \(it said nothing\)"):
        take_turns([silent], 1)
