"""Plans and contributions are public or hidden in noise, and cross a wire unchanged; diagnostics never do."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import blob_cohort, forked
from hypothesis import given, settings
from hypothesis import strategies as st

from silodp import Experiment
from silodp.engines.in_process import InProcess
from silodp.errors import InputError
from silodp.hospital import Hospital
from silodp.local.parameters import FlatModel
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, Release, RoundPlan
from silodp.noise.streams import seeded_noise
from silodp.runs.build import build
from silodp.update_map import UpdateMap

CPU = torch.device("cpu")
NAMES = ("hospital-0", "hospital-1")
EXPERIMENT = Experiment.build(
    {
        "model": {"features": 2, "levels": 1},
        "local": {"batch_size": 4, "state": "fresh"},
        "privacy": {"noise_multiplier": 0.7},
        "cohort": {"kind": "custom"},
    }
).resolve(2, 1)
MECHANISM = Mechanism.of(EXPERIMENT, [12, 12])


def hospitals() -> tuple[list[Hospital], FlatModel]:
    made: list[Hospital] = []

    def engine(built: Sequence[Hospital]) -> InProcess:
        made.extend(built)
        return InProcess(built)

    return made, build(EXPERIMENT, cohort=blob_cohort(2), engine=engine, device="cpu").model


def plan_of(model: FlatModel, v: int = 3) -> RoundPlan:
    events = MECHANISM.events(1, v, 0.3, False)
    start = model.values.clone()
    divisor = torch.rand(len(model), generator=torch.Generator().manual_seed(1)) + 0.5
    return RoundPlan(1, start, v, 0.3, UpdateMap(True, divisor), events, model.identity)


def answer_in_a_process(folder: str, number: int) -> None:
    """What a hospital's machine does: it has its own data and network, and reads and writes bytes."""
    mine, model = hospitals()
    plan = RoundPlan.from_bytes((Path(folder) / "plan").read_bytes())
    assert plan.model == model.identity
    answer, _ = mine[number].answer(plan)
    (Path(folder) / NAMES[number]).write_bytes(answer.to_bytes())


def test_two_hospitals_in_other_processes_give_the_same_release(tmp_path: Path) -> None:
    made, model = hospitals()
    plan = plan_of(model)
    (tmp_path / "plan").write_bytes(plan.to_bytes())
    for number in (0, 1):
        process = forked(answer_in_a_process, str(tmp_path), number)
        process.join()
        assert process.exitcode == 0
    sent = [Contribution.from_bytes((tmp_path / name).read_bytes()) for name in NAMES]
    there, unprotected = MECHANISM.decode(plan, NAMES, sent, seeded_noise(0, 1))
    here, _ = MECHANISM.decode(plan, NAMES, InProcess(made).train(plan, NAMES), seeded_noise(0, 1))
    assert torch.equal(there.mean, here.mean)
    assert (there.events, there.fraction_below) == (here.events, here.fraction_below)
    assert there.absent == here.absent == {}
    assert unprotected is None


def test_a_plan_is_public_and_says_nothing_of_who_is_asked() -> None:
    plan = plan_of(hospitals()[1])
    assert not any(name in plan.to_bytes().decode("latin-1") for name in NAMES)
    names = {field.name for field in fields(plan)}
    assert names == {"parameters", "update_map", *plan._public()} - {"per_step"}


def test_neither_an_answer_nor_a_release_has_a_place_for_diagnostics() -> None:
    assert {field.name for field in fields(Contribution)} == {"hospital", "round", "plan", "numbers"}
    assert not {"unprotected", "norms", "losses", "diagnostics"} & {field.name for field in fields(Release)}
    made, model = hospitals()
    plan = plan_of(model)
    answer, diagnostics = made[0].answer(plan, diagnose=True)
    assert diagnostics is not None
    quiet, _ = hospitals()[0][0].answer(plan)
    assert answer.to_bytes() == quiet.to_bytes()


@pytest.mark.parametrize("v", [1, 2, 5])
def test_an_answer_is_one_vector_of_whole_numbers_whatever_v_is(v: int) -> None:
    made, model = hospitals()
    numbers = made[0].answer(plan_of(model, v))[0].numbers
    assert numbers.shape == (len(model) + 1,)
    assert torch.equal(numbers, numbers.round())


def test_bytes_give_the_same_plan_and_the_same_answer() -> None:
    made, model = hospitals()
    plan = plan_of(model)
    again = RoundPlan.from_bytes(plan.to_bytes())
    assert again.digest == plan.digest
    assert again.events == plan.events
    assert {plan.to_bytes() for _ in range(20)} == {again.to_bytes()}
    answer, _ = made[0].answer(plan)
    back = Contribution.from_bytes(answer.to_bytes())
    assert torch.equal(back.numbers, answer.numbers)
    assert (back.hospital, back.round, back.plan) == (answer.hospital, 1, plan.digest)
    halves = replace(answer, numbers=answer.numbers + 0.5)
    assert torch.equal(Contribution.from_bytes(halves.to_bytes()).numbers, halves.numbers)


def test_whatever_a_plan_says_is_in_its_digest() -> None:
    plan = plan_of(hospitals()[1])
    changed: list[dict[str, Any]] = [
        {"round": 2}, {"parameters": plan.parameters + 1e-3}, {"intermediaries": 4}, {"clip_bound": 0.31},
        {"update_map": UpdateMap(True)}, {"update_map": UpdateMap(False, plan.update_map.divisor)},
        {"events": plan.events[:1]}, {"model": "another"},
    ]  # fmt: skip
    digests = {replace(plan, **change).digest for change in changed}
    assert len(digests | {plan.digest}) == len(changed) + 1


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_in_one_line_or_read(data: st.DataObject) -> None:
    plan = RoundPlan(1, torch.ones(3), 2, 0.5, UpdateMap(), MECHANISM.events(1, 2, 0.5, False), "model")
    answer = Contribution("hospital-0", 1, plan.digest, torch.arange(4.0, dtype=torch.float64))
    kind = data.draw(st.sampled_from([RoundPlan, Contribution]))
    good = plan.to_bytes() if kind is RoundPlan else answer.to_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    how = data.draw(st.sampled_from(["cut", "flip", "other kind", "nothing"]))
    bad = {
        "cut": good[:place],
        "flip": good[:place] + bytes([good[place] ^ (1 << data.draw(st.integers(0, 7)))]) + good[place + 1 :],
        "other kind": answer.to_bytes() if kind is RoundPlan else plan.to_bytes(),
        "nothing": b"",
    }[how]
    if how == "flip":
        with contextlib.suppress(InputError):
            kind.from_bytes(bad)
    else:
        with pytest.raises(InputError, match=r"^[^\n]*$"):
            kind.from_bytes(bad)


@pytest.mark.parametrize(
    "change",
    [{"round": True}, {"round": 0}, {"round": "1"}, {"intermediaries": -1}, {"clip_bound": None},
     {"clip_bound": "0.5"}, {"clip_bound": -1.0}, {"per_step": 1}, {"events": [{}]}, {"model": 3},
     {"surprise": 1}],
)  # fmt: skip
def test_a_plan_with_an_impossible_field_is_refused(change: dict[str, Any]) -> None:
    from silodp.messages import _packed

    plan = RoundPlan(1, torch.ones(3), 2, 0.5, UpdateMap(), MECHANISM.events(1, 2, 0.5, False), "model")
    public = json.loads(json.dumps(plan._public())) | change
    with pytest.raises(InputError, match="plan: "):
        RoundPlan.from_bytes(_packed("plan", public, {"parameters": plan.parameters}))


def test_whole_numbers_beyond_64_bits_are_not_changed_on_the_way() -> None:
    numbers = torch.tensor([1e20, 2.0, 0.0], dtype=torch.float64)
    sent = Contribution("a", 1, "plan", numbers)
    assert torch.equal(Contribution.from_bytes(sent.to_bytes()).numbers, numbers)


@pytest.mark.parametrize(
    "numbers",
    [
        torch.zeros(4, dtype=torch.float64).to_sparse(),
        torch.zeros(4, dtype=torch.float64, device="meta"),
        torch.zeros(4, dtype=torch.float64, requires_grad=True),
    ],
    ids=["sparse", "meta", "with gradient"],
)
def test_odd_tensors_of_an_own_engine_do_not_end_the_run(numbers: torch.Tensor) -> None:
    plan = RoundPlan(1, torch.ones(3), 2, 0.5)
    odd = [Contribution("a", 1, plan.digest, numbers), Contribution("b", torch.ones(2), plan.digest, numbers)]
    release, _ = MECHANISM.decode(plan, ["a", "b"], odd, seeded_noise(0, 1))  # type: ignore[list-item]
    assert "b" in release.absent
    assert torch.isfinite(release.mean).all()
