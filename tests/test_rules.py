"""A rule is one class, here or anywhere: defined outside the package it is known, used, recorded, checked."""

import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from conftest import records
from torch import Tensor

from silodp import (
    ClippingRule,
    Cohort,
    Experiment,
    InputError,
    IntermediaryRule,
    ServerOptimizer,
    UpdateMap,
    build,
    resume,
    train,
)
from silodp.experiment import RULES
from silodp.intermediary import Ratio
from silodp.participation import Poisson
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.server_optimizers import ServerRule


class Shrinking(ClippingRule):
    """C shrinks by a public factor: no bits, nothing read."""

    rule: Literal["tests-shrinking"] = "tests-shrinking"
    bound: float = 0.5
    factor: float = 0.5

    def first_bound(self) -> float:
        return self.bound

    def next_bound(self, bound: float | None, fraction_below: float | None) -> float | None:
        assert fraction_below is None
        return None if bound is None else bound * self.factor


class Peeking(ClippingRule):
    """C is the largest norm of the round: says that it reads_norms."""

    reads_norms: ClassVar[bool] = True
    rule: Literal["peeking"] = "peeking"

    def first_bound(self) -> None:
        return None

    def bound_of(self, norms: Tensor) -> float:
        return float(norms.max())


class PeekingInSecret(Peeking):
    """The same, and says nothing of it."""

    reads_norms: ClassVar[bool] = False
    rule: Literal["in-secret"] = "in-secret"  # type: ignore[assignment]


class Greedy(Shrinking):
    """Gives the update half of the noise that the round has."""

    rule: Literal["greedy"] = "greedy"  # type: ignore[assignment]

    def multipliers(self, noise_multiplier: float) -> tuple[float, float]:
        return noise_multiplier / 2, 0.0


class OneMore(IntermediaryRule):
    """v grows by one a round, whatever the ratio is; it reads it all the same."""

    reads_norms: ClassVar[bool] = True
    rule: Literal["one-more"] = "one-more"

    def first_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        return 1

    def next_count(self, count: int, round_: int, ratio: Ratio, hospitals: float) -> int:
        assert ratio.sum_of_norms > 0
        return count + 1


class Halves(IntermediaryRule):
    """v = 2: sees nothing."""

    rule: Literal["halves"] = "halves"

    def first_count(self, noise_multiplier: float, parameters: int, hospitals: float) -> int:
        return 2

    def next_count(self, count: int, round_: int, ratio: Ratio, hospitals: float) -> int:
        raise AssertionError("nobody said that this rule reads anything")


class SignDescent(ServerRule):
    """θ += lr·sign(g)."""

    optimizer: Literal["sign"] = "sign"

    def usual_rate(self, *, private: bool) -> float:
        return 0.01

    def make(self) -> ServerOptimizer:
        def step(state: Any, parameters: Tensor, mean: Tensor, noise_std: float) -> Any:
            return parameters + self.rate * mean.sign(), state

        return ServerOptimizer(lambda parameters: {}, step, lambda state: UpdateMap())


def test_an_own_clipping_rule_is_used_recorded_and_known_again(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """Three rounds at z = 0.5 in halves: ε is the closed form, and no bits are released."""
    chosen = experiment.change(checkpoint_every=2)
    result = train(chosen, cohort=cohort, clipping=Shrinking(factor=0.25), out=tmp_path / "run", device="cpu")
    assert [line["clip_bound"] for line in records(tmp_path / "run")] == [0.5, 0.125, 0.03125]
    assert result.epsilon.hospital == pytest.approx(gaussian_epsilon(math.sqrt(3) * 2 / 0.5, 0.1))
    events = (tmp_path / "run/ledger.jsonl").read_text()
    assert events.count("model update") == 3
    assert "clip quantile" not in events
    written = Experiment.load(tmp_path / "run/experiment.toml")
    assert written.clipping == Shrinking(factor=0.25)
    again = resume(tmp_path / "run", cohort=cohort, device="cpu")
    assert again.summary["rounds"] == 3
    by_name = Experiment.build({}, ["clipping.rule=tests-shrinking", "clipping.factor=0.25"])
    assert by_name.clipping == written.clipping


def test_what_a_rule_reads_is_in_the_ledger_and_beside_epsilon(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """The mechanism derives it from what the class says of itself; the class need not know of events."""
    result = train(
        experiment, cohort=cohort, clipping=Peeking(), intermediaries=OneMore(), out=tmp_path / "run",
        device="cpu",
    )  # fmt: skip
    assert [line["intermediaries"] for line in records(tmp_path / "run")] == [1, 2, 3]
    events = (tmp_path / "run/ledger.jsonl").read_text()
    assert events.count("median norm") == events.count("noise ratio") == 3
    assert not result.epsilon.covers_everything
    notes = " ".join(result.summary["not_covered_by_epsilon"])
    assert "clipping.rule = peeking" in notes
    assert "intermediaries.rule = one-more" in notes


def test_a_rule_that_says_it_reads_nothing_is_given_nothing(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    train(experiment, cohort=cohort, intermediaries=Halves(), out=tmp_path / "run", device="cpu")
    secretly = build(experiment, cohort=cohort, clipping=PeekingInSecret(), device="cpu")
    with pytest.raises(ValueError, match=r"clipping\.rule = in-secret: it names no C"):
        train(experiment, cohort=cohort, clipping=PeekingInSecret(), out=tmp_path / "secret", device="cpu")
    assert not (tmp_path / "secret/ledger.jsonl").read_text()
    assert secretly.experiment.clipping.uncovered == ""


def test_a_rule_cannot_spend_more_than_the_round_has(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"0\.25 and 0 are less noise than the round's 0\.5"):
        train(experiment, cohort=cohort, clipping=Greedy(), out=tmp_path / "run", device="cpu")


def test_an_own_server_rule_by_name(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    silent = experiment.change(
        server__optimizer="sign", privacy__noise_multiplier=0.0, clipping__rule="none", rounds=1
    )
    start = build(silent, cohort=cohort, device="cpu").model.values.clone()
    result = train(silent, cohort=cohort, out=tmp_path / "run", device="cpu")
    moved = torch.cat([p.detach().permute(0, 2, 3, 1).flatten() if p.ndim == 4 else p.detach().flatten()
                       for p in result.model.parameters()]) - start  # fmt: skip
    assert float(moved.abs().max()) == pytest.approx(0.01, rel=1e-4)


def test_two_rules_cannot_share_a_name() -> None:
    with pytest.raises(TypeError, match=r"clipping\.rule = fixed: silodp\.clipping has this rule already"):

        class Mine(ClippingRule):
            rule: Literal["fixed"] = "fixed"


def test_another_rule_leaves_the_former_ones_settings_behind() -> None:
    """So `--set clipping.rule=fixed` needs no other change; what is typed along must fit all the same."""
    base = {"clipping": {"rule": "quantile", "quantile": 0.3, "bound": 2.0}}
    changed = Experiment.build(base, ["clipping.rule=fixed"])
    assert changed.clipping.model_dump() == {"rule": "fixed", "bound": 2.0, "normalise": False}
    with pytest.raises(InputError, match=r"clipping\.quantile = 0\.4: not a setting of clipping\.rule"):
        Experiment.build(base, ["clipping.rule=fixed", "clipping.quantile=0.4"])


def test_every_rule_says_what_it_is() -> None:
    for section, base in RULES.items():
        for name, rule in base.known.items():
            assert rule.name() == name
            assert rule.__doc__
            assert len(rule.__doc__.splitlines()[0]) < 110, (section, name)


class Admitting(Shrinking):
    """Says of itself what ε leaves out, though it reads nothing in the run."""

    rule: Literal["admitting"] = "admitting"  # type: ignore[assignment]
    cap: float | None = 0.1

    @property
    def uncovered(self) -> str:
        return "C: agreed on by looking at the data"


def test_what_a_rule_declares_uncovered_is_listed_beside_epsilon(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    result = train(experiment, cohort=cohort, clipping=Admitting(), out=tmp_path / "run", device="cpu")
    assert "C: agreed on by looking at the data" in result.summary["not_covered_by_epsilon"]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"clipping": "none"}, "clipping: 'none' is not a rule; give an instance of ClippingRule"),
        ({"clipping": Shrinking}, "is not a rule; give an instance of ClippingRule"),
        ({"clipping": Halves()}, "is not a rule; give an instance of ClippingRule"),
        ({"intermediaries": 7}, "intermediaries: 7 is not a rule; give an instance of IntermediaryRule"),
        ({"clipping": Admitting(cap=None)}, "clipping.cap = None: TOML cannot express that"),
    ],
)
def test_what_is_no_rule_is_refused(own: dict[str, Any], words: str, experiment: Experiment) -> None:
    with pytest.raises(InputError) as caught:
        build(experiment, **own)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["server_optimiser", "optimizer", "modell", "participation"])
@pytest.mark.parametrize("call", [build, train])
def test_a_misspelt_object_is_not_passed_over(name: str, call: Any, experiment: Experiment) -> None:
    with pytest.raises(TypeError, match=f"'{name}': build, train and resume take cohort, model,"):
        call(experiment, **{name: object()})


class Quiet(Poisson):
    """Draws hospitals and says nothing of it."""

    rule: Literal["quiet"] = "quiet"  # type: ignore[assignment]

    @property
    def in_words(self) -> str:
        return ""


@pytest.mark.parametrize("privacy", [{"level": "sample"}, {"noise": "shared"}])
def test_what_a_rule_does_counts_and_not_what_it_is_called(privacy: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"participation\.rule = quiet with privacy"):
        Experiment(privacy=privacy, participation={"rule": "quiet", "rate": 0.5})


def test_keys_that_are_no_names_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="clipping"):
        Experiment(clipping={1: 2})
