"""Who is compared with whom: the same steps on the same images, in processes that are asked in turn."""

import json
import os

import pytest

from silodp.bench import turns
from silodp.bench.bare import BareLoop
from silodp.bench.comparison import cores, on_cpu
from silodp.bench.federated import FederatedRounds
from silodp.bench.processes import Moment, memory
from silodp.bench.turns import Program, Row, bare, take_turns
from silodp.bench.worker import FINISHED
from silodp.bench.workloads import SMOKE, TINY, UNET, Workload


@pytest.mark.parametrize("workload", SMOKE.values(), ids=SMOKE.keys())
def test_both_train_the_same_steps_on_the_same_images(workload: Workload) -> None:
    loop, rounds = BareLoop(workload), FederatedRounds(workload)
    try:
        loop.round()
        rounds.round()
        assert loop.steps == rounds.steps == workload.steps
        seen = sum(len(images) for images, _ in loop.batches)
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
    assert TINY.with_steps(1).intermediaries == 1
    assert TINY.with_steps(45).intermediaries == 2
    assert UNET.with_steps(10**6) == UNET


def test_the_limit_is_a_process_a_core() -> None:
    programs, settings = on_cpu(TINY, channels_last=True, quick=False)
    assert len(programs[0].commands) == min(cores(), TINY.parts)
    assert [one.name for one in programs[-len(settings) :]] == list(settings)


def test_a_program_that_fails_is_named_with_what_it_said() -> None:
    broken = bare(SMOKE["tiny"], 1, 1)
    broken.commands = [[*broken.commands[0][:-1], "{}"]]
    with pytest.raises(RuntimeError, match=r"bare loop, 1 process of 1 thread: a process ended \(KeyError"):
        take_turns([broken], 1)
    silent = Program("silent", [["true"]])
    with pytest.raises(RuntimeError, match=r"silent: a process ended \(without any output\)"):
        take_turns([silent], 1)


def test_rows_of_two_starts_are_one() -> None:
    first = Row("one", (3.0,), (1.0, 2.0), (1.0, 1.5), (2.0, 2.0), (0.0, 0.1), 4, 10)
    both = first + Row("one", (5.0,), (6.0,), (3.0,), (5.0,), (0.2,), 4, 20)
    assert (both.setup, both.median, both.ratio, both.mean_work, both.memory) == (4.0, 2.0, 1.5, 3.0, 20)


def test_a_turn_that_others_disturbed_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is only a shell loop, and a machine whose moments are made up."""
    answers = [["sh", "-c", f"echo '{FINISHED} 1'; while read line; do echo '{FINISHED} 1'; done"]]
    disturbed = iter([0.9, 0.0, 0.5, 0.1])

    class Made:
        @classmethod
        def now(cls, sessions: set[int]) -> "Made":
            return cls()

        def cores_of_others(self, later: "Made") -> float:
            return next(disturbed)

    monkeypatch.setattr(turns, "Moment", Made)
    (row,) = take_turns([Program("shell", answers)], 2, quiet=0.2)
    assert row.others == (0.0, 0.1)
    assert (row.steps, row.ratio, len(row.seconds)) == (1, 1.0, 2)


def test_the_machine_says_what_others_use() -> None:
    before = Moment.now(set())
    later = Moment(before.clock + 2, before.work + 5, before.own + 3)
    assert before.cores_of_others(later) == pytest.approx(1.0)
    assert before.cores_of_others(Moment(before.clock + 1, before.work, before.own + 1)) == 0
    assert memory(os.getsid(0)) >= 0
