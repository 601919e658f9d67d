"""A federation is put together in one place, of an experiment's parts or of a user's own."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import killed_run

import silodp
from silodp import Cohort, Experiment, InputError, ServerOptimizer, UpdateMap, resume, train
from silodp.engines.in_process import InProcess
from silodp.hospital import Hospital
from silodp.messages import Contribution, RoundPlan
from silodp.privacy.ledger import Ledger


def momentum() -> ServerOptimizer:
    """θ += 0.9·(last step) + g, on updates that hospitals divide by their steps."""

    def step(state: dict[str, Any], parameters: Any, mean: Any, noise_std: float) -> Any:
        velocity = 0.9 * state["velocity"] + mean
        return parameters + velocity, {"velocity": velocity}

    return ServerOptimizer(
        lambda parameters: {"velocity": torch.zeros_like(parameters)},
        step,
        lambda state: UpdateMap(per_step=True),
    )


def test_it_gives_the_parts_and_trains_nothing(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    parts = silodp.build(experiment, cohort=cohort, device="cpu")
    assert parts.experiment.privacy.delta == 0.1  # resolved
    assert list(parts.federation.hospitals) == [hospital.name for hospital in cohort.hospitals]
    state = parts.first_state()
    assert (state.round, len(state.parameters)) == (0, len(parts.model))
    done = next(parts.federation.rounds(state, Ledger(tmp_path / "ledger.jsonl")))
    assert done.release.absent == {}
    run = train(experiment.change(rounds=1), cohort=cohort, out=tmp_path / "run", device="cpu")
    trained = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    parts.model.load(state.parameters)
    built = torch.cat([p.detach().flatten() for p in parts.model.module.parameters()])
    assert torch.equal(trained, built)


def test_an_own_server_optimizer_steps_and_survives_a_kill(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    mine: dict[str, Any] = {"cohort": cohort, "server_optimizer": momentum(), "device": "cpu"}
    whole = train(experiment, out=tmp_path / "whole", **mine)
    killed_run(experiment, 2, cohort=cohort, server_optimizer=momentum(), out=tmp_path / "cut")
    again = resume(tmp_path / "cut", **mine)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    # By hand from the released means of the same federation: v₁ = g₁, v₂ = 0.9·g₁ + g₂, …
    parts = silodp.build(experiment, **mine)
    state, means = parts.first_state(), []
    start = state.parameters.clone()
    for done in parts.federation.rounds(state, Ledger(tmp_path / "ledger.jsonl")):
        assert done.plan.update_map.per_step
        means.append(done.release.mean)
    first, second, third = means
    expected = start + first + (0.9 * first + second) + (0.81 * first + 0.9 * second + third)
    torch.testing.assert_close(state.parameters, expected)


def test_a_run_with_an_own_optimizer_needs_it_again(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    train(experiment, cohort=cohort, out=tmp_path / "run", server_optimizer=momentum(), device="cpu")
    with pytest.raises(InputError, match=r"server\.optimizer = custom: .*server_optimizer=…"):
        resume(tmp_path / "run", cohort=cohort, device="cpu")


class Wired(InProcess):
    """An engine of a user's own: every message crosses as bytes, each answer comes twice, the last first."""

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        received = RoundPlan.from_bytes(plan.to_bytes())
        answers = [answer.to_bytes() for answer in super().train(received, asked, diagnose=diagnose)]
        for data in [*reversed(answers), *answers]:
            yield Contribution.from_bytes(data)


def test_an_own_engine_gives_the_same_model_and_counts_each_answer_once(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    made: list[Wired] = []

    def wired(hospitals: Sequence[Hospital]) -> Wired:
        made.append(Wired(hospitals))
        return made[-1]

    plain = train(experiment, cohort=cohort, out=tmp_path / "plain", device="cpu")
    lines: list[dict[str, Any]] = []
    over = train(
        experiment, cohort=cohort, out=tmp_path / "wired", device="cpu", engine=wired, on_round=lines.append
    )
    assert made
    for one, other in zip(plain.model.parameters(), over.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [line["absent"] for line in lines] == [{}, {}, {}]
    twice = "it answered twice; the first answer counts"
    names = [hospital.name for hospital in cohort.hospitals]
    assert lines[0]["ignored"] == [[name, twice] for name in names]
    assert over.epsilon == plain.epsilon
