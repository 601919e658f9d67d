import contextlib
import copy
import gc
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Picky, blob_cohort

from silodp import HospitalData, InputError
from silodp.clipping import QuantileClipping
from silodp.hospital import Hospital
from silodp.local.jobs import Executor, Job, Outcome, Sequential
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.stacked import Stacked
from silodp.local.state import state_folder
from silodp.local.trainer import LocalTrainer
from silodp.mechanism import Mechanism
from silodp.messages import RoundPlan
from silodp.models.unet import UNet
from silodp.participation import Everyone
from silodp.tasks import task_named
from silodp.update_map import UpdateMap

CPU = torch.device("cpu")
MECHANISM = Mechanism(0.0, QuantileClipping(), Everyone(), 3)


def hospital(
    data: HospitalData | None = None,
    network: torch.nn.Module | None = None,
    executor: Callable[[LocalTrainer], Executor] = Sequential,
    **settings: object,
) -> tuple[Hospital, torch.Tensor]:
    torch.manual_seed(0)
    model = FlatModel(copy.deepcopy(network) if network else UNet(1, 1, 2, "batch", 1), CPU)
    local = LocalSettings.of(**{"learning_rate": 0.01, "batch_size": 4} | settings)
    trainer = LocalTrainer(model, task_named("segmentation"), local)
    data = data or blob_cohort().hospitals[0]
    return Hospital(data, trainer, MECHANISM, 0, executor=executor(trainer)), model.values.clone()


def plan(start: torch.Tensor, v: int, bound: float | None, number: int = 1, **more: object) -> RoundPlan:
    return RoundPlan(number, start, v, bound, **more)  # type: ignore[arg-type]


def sent(one: Hospital, asked: RoundPlan) -> tuple[torch.Tensor, float]:
    """The sum of clipped updates that the hospital's answer stands for, and its bits."""
    total, bits = MECHANISM.opened(asked, one.answer(asked)[0].numbers)
    return total.float(), bits


def updates(one: Hospital, asked: RoundPlan) -> torch.Tensor:
    """(v, d) what it clips: trained as for the authors' median, kept until it answers."""
    one.measure_norms(asked)
    assert one._measured is not None
    raw = torch.cat([update.view(-1, len(asked.parameters)) for update in one._measured[1]]).clone()
    with contextlib.suppress(ValueError):
        one.answer(replace(asked, clip_bound=math.inf))
    return raw


@pytest.mark.parametrize("bound", [0.05, 0.5, math.inf])
def test_the_answer_is_the_sum_of_clipped_updates(bound: float) -> None:
    """The unclipped updates, asked for apart, clipped and summed here, are what the hospital sends."""
    one, start = hospital(state="fresh")
    raw = updates(one, plan(start, 3, None))
    total, bits = sent(one, plan(start, 3, bound))
    norms = raw.double().norm(dim=1)
    expected = (raw * (bound / norms).clamp(max=1)[:, None]).sum(0).float()
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)
    assert float(total.double().norm()) <= 3 * bound
    assert bits == pytest.approx(float((norms <= bound).sum()) - 1.5)
    assert one.answer(plan(start, 3, bound))[1] is None  # unless they are asked for
    _, diagnostics = one.answer(plan(start, 3, bound), diagnose=True)
    assert diagnostics is not None
    torch.testing.assert_close(diagnostics.norms, norms)


def test_scaling_by_steps_and_preconditioner_comes_before_clipping() -> None:
    """Clipping first would leave norms above the bound after division by a small preconditioner."""
    one, start = hospital(state="fresh")
    divisor = torch.full_like(start, 1e-3)
    both, _ = sent(one, plan(start, 2, 0.5, update_map=UpdateMap(True, divisor)))
    assert float(both.double().norm()) <= 2 * 0.5
    plain, _ = sent(one, plan(start, 2, math.inf))
    scaled, _ = sent(one, plan(start, 2, math.inf, update_map=UpdateMap(divisor=divisor)))
    torch.testing.assert_close(scaled, plain * 1e3, rtol=1e-4, atol=1e-3)
    steps, _ = sent(one, plan(start, 2, math.inf, update_map=UpdateMap(per_step=True)))
    torch.testing.assert_close(steps, plain / 2, rtol=1e-4, atol=1e-6)  # 6 images, batch 4


def test_kept_states_follow_v() -> None:
    one, start = hospital(state="kept")
    one.answer(plan(start, 2, 1.0))
    assert [float(state["step"]) for state in one.states] == [2.0, 2.0]
    mean = torch.stack([state["exp_avg"] for state in one.states]).mean(0)
    states = one._states_for(3)
    assert len(states) == 3
    for state in states:
        torch.testing.assert_close(state["exp_avg"], mean)


def test_an_intermediary_is_the_same_images_in_every_round() -> None:
    """Change one image: with v = 6 one update a round may change, in every round, or ε is nobody's."""
    data = blob_cohort(images=40).hospitals[0]
    changed = data.train.images.clone()
    changed[0] += 1
    other = replace(data, train=replace(data.train, images=changed))
    for state in ("kept", "fresh"):
        (one, start), (two, _) = hospital(data, state=state), hospital(other, state=state)
        for number in (1, 2, 3):
            asked = plan(start, 6, None, number=number)
            moved = (updates(one, asked) - updates(two, asked)).abs().amax(1)
            assert int((moved > 0).sum()) == 1


@pytest.mark.parametrize("state", ["kept", "fresh"])
@pytest.mark.parametrize(
    ("network", "pixel", "executor"),
    [
        (UNet(1, 1, 2, "batch", 1), 3e38, Sequential),
        (UNet(1, 1, 2, "batch", 1), 3e38, Stacked),
        (Picky(UNet(1, 1, 2, "batch", 1)), 99.0, Sequential),
    ],
    ids=["runs away", "runs away, stacked", "raises"],
)
def test_a_failing_intermediary_counts_as_zero_and_affects_no_other(
    network: torch.nn.Module, pixel: float, executor: Callable[[LocalTrainer], Executor], state: str
) -> None:
    """One image makes its intermediary's update NaN, or is refused by the network: its own update is nothing,
    and its bit; the other five must not notice, ever."""
    (one, start), (two, _) = (hospital(network=network, executor=executor, state=state) for _ in range(2))
    whole = two.parts["train"]
    images = whole.images.clone()
    images[0] = pixel
    for number, harmed in ((1, True), (2, True), (3, False)):
        two.parts["train"] = replace(whole, images=images) if harmed else whole
        asked = plan(start, 6, None, number=number)
        differ = (updates(one, asked) != updates(two, asked)).any(1)
        # Kept: its moments began anew, so that it differs on; those of the others are as they were.
        assert int(differ.sum()) == (1 if harmed or state == "kept" else 0)
    # With a bound: the sum moves by C at most and the bits by one half, which is what the ledger counts.
    for number, harmed in ((4, False), (5, True)):
        two.parts["train"] = replace(whole, images=images) if harmed else whole
        asked = plan(start, 6, 0.5, number=number)
        (first, first_bits), (second, second_bits) = sent(one, asked), sent(two, asked)
        assert math.isfinite(second_bits)
        assert float(second.norm()) <= 6 * 0.5
    if state == "fresh":
        assert 0 < float((first - second).norm()) <= 0.5 * (1 + 1e-5)
        assert abs(first_bits - second_bits) == 0.5


def test_a_hospital_of_which_every_intermediary_raises_is_absent_and_begins_anew() -> None:
    """States that depend on whether the others failed, too, would let one part steer another."""
    one, start = hospital(network=Picky(UNet(1, 1, 2, "batch", 1)), state="kept")
    one.answer(plan(start, 3, 0.5))
    assert [float(state["step"]) for state in one.states] == [1.0] * 3
    whole = one.parts["train"]
    one.parts["train"] = replace(whole, images=whole.images + 99)
    with pytest.raises(ValueError, match="not a scan"):
        one.answer(plan(start, 3, 0.5, number=2))
    assert [float(state["step"]) for state in one.states] == [0.0] * 3


def test_a_round_depends_on_its_number_and_not_on_what_ran_before() -> None:
    one, start = hospital(state="fresh", augmentation="affine-flip")
    first, _ = sent(one, plan(start, 2, 1.0, number=4))
    one.answer(plan(start, 3, 1.0, number=9))
    assert torch.equal(sent(one, plan(start, 2, 1.0, number=4))[0], first)
    assert not torch.equal(sent(one, plan(start, 2, 1.0, number=5))[0], first)


@pytest.mark.parametrize("bound", [0.5, math.inf, None])
def test_memory_does_not_grow_with_intermediaries(
    bound: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the vectors of the model's size that are alive in every local step."""
    one, start = hospital(state="fresh")
    most: dict[int, int] = {}
    step = LocalTrainer.step

    def counting(self: LocalTrainer, *arguments: Any) -> torch.Tensor:
        alive = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.numel() == len(start)]
        most[v] = max(most.get(v, 0), len({t.data_ptr() for t in alive}))
        return step(self, *arguments)

    monkeypatch.setattr(LocalTrainer, "step", counting)
    for v in (1, 6):
        if bound is None:
            one.measure_norms(plan(start, v, None))
        else:
            one.answer(plan(start, v, bound))
    if bound is None:  # the authors' median needs every update of the round
        assert most[6] > most[1]
    else:
        assert most[6] <= most[1]


@pytest.mark.parametrize("state", ["kept", "fresh"])
def test_the_same_plan_answered_twice_is_one_answer_and_one_step_of_the_states(state: str) -> None:
    """A server that did not hear the answer asks again; the next round must not notice."""
    ways = []
    for times in (1, 2, 3):
        one, start = hospital(state=state)
        plans = [plan(start, 2, 0.5, number=number) for number in (1, 2)]
        answers = [[one.answer(asked)[0] for _ in range(times)] for asked in plans]
        for given in answers:
            assert all(torch.equal(again.numbers, given[0].numbers) for again in given)
        ways.append(answers[-1][0].numbers)
    assert torch.equal(ways[0], ways[1])
    assert torch.equal(ways[0], ways[2])


@pytest.mark.parametrize("state", ["kept", "fresh"])
def test_an_answer_asked_for_again_brings_diagnostics_only_where_they_are_asked_for(state: str) -> None:
    one, start = hospital(state=state)
    asked = plan(start, 2, 0.5)
    told = [one.answer(asked, diagnose=diagnose)[1] is not None for diagnose in (True, False, True)]
    assert told == [True, False, True]


def test_states_stay_at_the_hospital_and_come_back_to_the_bit(tmp_path: Path) -> None:
    """Put down after rounds 1 and 2; from either it goes on as it did, and only these two are kept."""
    one, start = hospital()
    seen = {}
    for number in (1, 2, 3, 4):
        seen[number] = sent(one, plan(start, 2, 0.5, number=number))[0]
        one.save_states(tmp_path, number)
    (folder,) = tmp_path.iterdir()
    assert {file.name for file in folder.iterdir()} == {"3.pt", "4.pt"}
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    again, _ = hospital()
    again.load_states(tmp_path, 3)
    assert torch.equal(sent(again, plan(start, 2, 0.5, number=4))[0], seen[4])
    one.load_states(tmp_path, 3)  # a server that comes back to an earlier checkpoint
    assert torch.equal(sent(one, plan(start, 2, 0.5, number=4))[0], seen[4])
    one.load_states(tmp_path, 0)
    assert torch.equal(sent(one, plan(start, 2, 0.5, number=1))[0], seen[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "the hospital's states are missing"),
        (b"nothing of the kind", "not the states of this hospital"),
        ([{"exp_avg": torch.zeros(3)}], "not the states of this hospital"),
        ({}, "not the states of this hospital"),
        ([3], "not the states of this hospital"),
    ],
)
def test_states_that_are_lost_or_anothers_are_refused(content: object, words: str, tmp_path: Path) -> None:
    one, start = hospital()
    one.answer(plan(start, 2, 0.5))
    one.save_states(tmp_path, 1)
    (file,) = tmp_path.rglob("*.pt")
    file.unlink()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    with pytest.raises(InputError, match=words):
        one.load_states(tmp_path, 1)


def test_any_string_can_name_a_hospital() -> None:
    """None leads out of the folder, and no two share one."""
    names = ["a", "A", "../../etc", "/", ".", "", "ä", "a b", "x" * 300, "x" * 301, "\ud800"]
    places = {state_folder(Path("/run/hospitals"), name) for name in names}
    assert len({str(place).lower() for place in places}) == len(names)
    assert {place.parent for place in places} == {Path("/run/hospitals")}
    assert all(len(place.name) < 60 for place in places)


def test_a_stateful_hospital_refuses_plans_of_past_rounds() -> None:
    """A late copy of round one, or another plan of round two, would move the states on once more."""
    one, start = hospital()
    for number in (1, 2):
        one.answer(plan(start, 2, 0.5, number=number))
    steps = [float(state["step"]) for state in one.states]
    for late in (plan(start, 2, 0.5, number=1), plan(start, 2, 0.25, number=2)):
        with pytest.raises(InputError, match="has answered round 2, by another plan or later"):
            one.answer(late)
    with pytest.raises(InputError, match="has answered round 2"):
        one.measure_norms(plan(start, 2, None, number=2))
    assert [float(state["step"]) for state in one.states] == steps
    fresh, _ = hospital(state="fresh")
    for number in (2, 1):
        fresh.answer(plan(start, 2, 0.5, number=number))


def test_measured_updates_serve_their_own_plan_only() -> None:
    one, start = hospital(state="fresh")
    asked = plan(start + 0.1, 1, 0.5)
    honest = sent(one, asked)[0]
    one.measure_norms(plan(start, 2, None))
    assert torch.equal(sent(one, asked)[0], honest)


def jobs_of(people: list[int] | None, v: int) -> list[Job]:
    """What a hospital of twelve images of these people lets its intermediaries train, in steps of two."""
    seen: list[Job] = []

    class Noting(Sequential):
        def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
            for job in jobs:
                seen.append(job)
                yield from super().run([job])

    data = blob_cohort().hospitals[0]
    patients = None if people is None else torch.tensor(people)
    data = replace(data, train=replace(data.train, patients=patients))
    one, start = hospital(data, executor=Noting, batch_size=2)
    one.answer(plan(start, v, 0.5))
    return seen


def test_steps_do_not_tell_how_many_images_a_patient_has() -> None:
    """Two intermediaries of twelve images, in steps of two: three each, however the images are divided."""
    for people in ([0] * 6 + [1] * 6, [0] * 9 + [1] * 3, [0] + [1] * 11):
        assert [len(job.batches) for job in jobs_of(people, 2)] == [3, 3]


@pytest.mark.parametrize(
    ("people", "v", "public"),
    [
        ([0] * 6 + [1] * 6, 2, False),
        ([*range(12)], 3, False),
        ([0] * 6 + [1] * 6, 1, True),
        (None, 3, True),
    ],
    ids=["two of six images", "each of one", "the whole hospital", "unknown"],
)
def test_sizes_that_hang_on_patients_are_no_ground_for_stacking(
    people: list[int] | None, v: int, public: bool
) -> None:
    """Also where they are equal: with one image more or less they would not be."""
    assert [job.public_sizes for job in jobs_of(people, v)] == [public] * v


@pytest.mark.parametrize("state", ["kept", "fresh"])
def test_jobs_may_be_taken_together(state: str) -> None:
    """An executor may ask for all jobs before it runs the first: none may hold what another changes."""

    class AllFirst(Sequential):
        def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
            return super().run(list(jobs))

    one, start = hospital(state=state)
    other, _ = hospital(state=state)
    other._executor = AllFirst(other._trainer)
    for number in (1, 2):
        asked = plan(start, 3, 0.5, number=number)
        assert torch.equal(sent(one, asked)[0], sent(other, asked)[0])
