"""The audit of an intact and of a sabotaged mechanism, with both kinds of noise, and of own experiments.

Noise of the system has no seed. Tests that draw fail by chance once in a million: their confidence and the
missing noise are chosen so.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import silodp.mechanism
import silodp.noise.streams
from silodp.attacks.audit import EXPERIMENT, Audit, AuditSettings, audit
from silodp.attacks.canary import AuditFederations, WithCanary
from silodp.cli.display_privacy import show_audit
from silodp.clipping import QuantileClipping
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.mechanism import Mechanism
from silodp.messages import RoundPlan
from silodp.noise.lattice import sensitivity
from silodp.noise.streams import NoiseSource, seeded_noise, system_noise
from silodp.participation import Everyone
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.power import detectable

SURE = 1 - 1e-6


def settings(runs: int = 30, rounds: int = 1, confidence: float = SURE, **changes: Any) -> AuditSettings:
    """One honest hospital and two intermediaries at z = 3: μ is 2/3 for a hospital in one round."""
    changes = {"privacy__noise_multiplier": 3.0, "intermediaries__count": 2} | changes
    return AuditSettings(EXPERIMENT.change(**changes), runs, rounds, 2, confidence)


def test_canary_sends_what_its_intermediaries_may_and_else_does_not_answer() -> None:
    direction = torch.nn.functional.normalize(
        torch.randn(50, generator=torch.Generator().manual_seed(4)), dim=0
    )
    mechanism = Mechanism(1.0, QuantileClipping(), Everyone(), 2)
    engine = WithCanary([], mechanism, direction)
    plan = RoundPlan(1, torch.zeros(50), 3, 0.2)
    assert list(engine.train(plan, ["canary"])) == []
    for sent in (1, 3):
        engine.sent = sent
        (answer,) = engine.train(plan, ["canary"])
        total, bits = mechanism.opened(plan, answer.numbers)
        assert float(total.norm()) == pytest.approx(sent * 0.2, rel=1e-5)
        assert bits == sent / 2


def weakened(factor: Callable[[str], float]) -> Callable[[int, int], NoiseSource]:
    """The simulations' noise source with some of its noise missing."""

    def source(seed: int, number: int) -> NoiseSource:
        draw = seeded_noise(seed, number)
        return lambda hidden, public, count: draw(hidden, public, count) * factor(public)

    return source


@pytest.mark.parametrize("optimizer", ["fedavg", "fedadam", "fednova", "dp2-rmsprop"])
def test_the_observer_sees_the_canary_and_nothing_of_the_honest(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise the score is Σ sent/z² over rounds and releases, whatever the others trained."""
    monkeypatch.setattr(silodp.noise.streams, "seeded_noise", weakened(lambda public: 0.0))
    z, rounds = 2.0, 5  # dp2-rmsprop preconditions rounds 4 and 5
    experiment = EXPERIMENT.change(privacy__noise_multiplier=z, server__optimizer=optimizer)
    scores, claimed = AuditFederations(experiment, rounds, hospitals=3).observe(1)
    for sent in (0, 1, 3):
        both, updates, bits = scores[sent][0]
        assert updates == pytest.approx(0.95 * sent * rounds / z**2, abs=1e-4)
        assert bits == pytest.approx(0.05 * sent * rounds / z**2, abs=1e-4)
        assert both == pytest.approx(updates + bits)
    assert claimed.hospital == pytest.approx(gaussian_epsilon(3 * math.sqrt(rounds) / z, 0.1), rel=1e-6)


@pytest.fixture(scope="module")
def small() -> Audit:
    """μ is 2.7 for a hospital and 0.9 for an intermediary, in one round.

    A true claim breaks for one seed in 10,000; the last one is missed less often (4.4 standard deviations).
    """
    return audit(settings(100, 1, 0.9999, privacy__noise_multiplier=1.125, intermediaries__count=3))


def test_true_claims_hold_and_the_papers_figure_for_a_hospital_breaks(small: Audit) -> None:
    assert small.delta == 0.1
    for finding, mu in ((small.hospital, 8 / 3), (small.intermediary, 8 / 9)):
        assert finding.verdict == "holds"
        assert finding.claimed_mu == pytest.approx(mu, rel=1e-6)
        assert finding.claimed == pytest.approx(gaussian_epsilon(mu, 0.1), rel=1e-6)
        assert finding.shown == pytest.approx(gaussian_epsilon(finding.bound.mu, 0.1))
        assert 0 <= finding.bound.mu <= min(mu, finding.bound.most)
        assert finding.detectable == detectable(finding.claimed_mu, 100, 0.9999)
    assert small.paper.verdict == "broken"
    assert small.paper.claimed == small.intermediary.claimed
    assert small.paper.bound == small.hospital.bound


def test_an_audit_says_what_it_could_notice(small: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    show_audit(small)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"×{small.hospital.detectable:.2f} holds" in shown
    assert "audited of «default»: noise (z 1.125, from the seed), clipping (quantile)" in shown
    assert "replaced by small ones: data, network, local training, rounds" in shown
    assert "another audit" not in shown


def test_claims_too_weak_for_so_few_are_untested(capsys: pytest.CaptureFixture[str]) -> None:
    found = audit(settings(20, 1, 0.99, privacy__noise_multiplier=0.5, clipping__rule="fixed"))
    # μ is 4 for a hospital and 2 for an intermediary; 32 right guesses of 32 show 2.2.
    assert [finding.verdict for finding in found.findings[:2]] == ["untested", "holds"]
    assert found.hospital.detectable is None
    show_audit(found)
    assert "the hospital's claim is too weak to be tested" in " ".join(capsys.readouterr().out.split())
    assert found.hospital.bound.score != "clip quantile"


def test_audit_reads_back_from_json(small: Audit) -> None:
    read = json.loads(json.dumps(small.to_dict()))
    assert read["hospital"]["verdict"] == "holds"
    assert read["hospital"]["detectable"] == small.hospital.detectable
    assert read["paper"]["bound"]["mu"] == small.paper.bound.mu
    assert read["settings"]["runs"] == 100
    assert read["settings"]["experiment"]["privacy"]["noise_multiplier"] == 1.125
    assert read["repeatable"]


def test_same_seed_same_audit_and_progress_is_told() -> None:
    own = settings(20, intermediaries__count=1, clipping__rule="fixed", privacy__delta=0.01)
    told: list[tuple[int, int]] = []
    torch.set_num_threads(2)
    try:
        first = audit(own, on_run=lambda done, total: told.append((done, total)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert first == audit(own)
    assert told == [(done, 40) for done in range(1, 41)]  # with v = 1 both canaries are the same
    assert first.hospital.claimed == first.intermediary.claimed
    assert first.delta == 0.01


def missing(factor: float, entropy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of noise `factor` times too small; the ledger knows nothing of it."""
    if entropy == "seed":
        monkeypatch.setattr(silodp.noise.streams, "seeded_noise", weakened(lambda public: 1 / factor))
    else:
        monkeypatch.setattr(
            silodp.noise.streams,
            "system_noise",
            lambda hidden, public, count: system_noise(hidden, public, count) / factor,
        )


@pytest.mark.parametrize("entropy", ["seed", "system"])
def test_missing_noise_is_caught_where_the_audit_says_it_would_and_only_there(
    entropy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    intact = audit(settings(privacy__entropy=entropy))
    assert intact.hospital.verdict == intact.intermediary.verdict == "holds"
    own = settings(confidence=0.99, privacy__entropy=entropy)
    factor = detectable(2 / 3, own.runs, own.confidence, power=SURE)
    assert factor is not None
    missing(factor, entropy, monkeypatch)
    found = audit(own)
    assert found.hospital.verdict == "broken"
    assert found.hospital.claimed_mu == pytest.approx(2 / 3)


def test_noise_of_the_system_is_audited_and_not_repeatable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(silodp.noise.streams, "seeded_noise", None)  # nobody may ask for it
    own = settings(20, intermediaries__count=1, privacy__entropy="system")
    bench = AuditFederations(own.experiment, own.rounds, own.hospitals)
    assert bench.observe(1)[0][0].tolist() != bench.observe(1)[0][0].tolist()
    found = audit(own)
    assert not found.repeatable
    assert not found.to_dict()["repeatable"]
    show_audit(found)
    assert "another audit shows other figures" in " ".join(capsys.readouterr().out.split())


def test_noise_scaled_by_the_wrong_bound_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # μ of a hospital would be 4.7: 99 guesses of 100 are right, and 39 of 48 break the claim of 2/3.
    monkeypatch.setattr(silodp.mechanism, "sensitivity", lambda bound, v: sensitivity(bound, v) / 7)
    assert audit(settings(confidence=0.99)).hospital.verdict == "broken"


def test_quantile_bits_without_noise_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = "clip quantile"
    monkeypatch.setattr(silodp.noise.streams, "seeded_noise", weakened(lambda public: float(public != bits)))
    found = audit(settings(runs=100))  # so that the runs which choose a score can tell the bits from the rest
    assert found.hospital.verdict == found.intermediary.verdict == "broken"
    assert found.hospital.bound.score != "model updates"


def test_an_experiment_is_audited_with_its_own_mechanism() -> None:
    """z, rule for v, clipping, server and entropy are its own; data, network and rounds are not."""
    own = Experiment.load(
        "prostate-small", {"server.optimizer": "fedadam", "privacy.entropy": "system", "budget.epsilon": 1e6}
    )
    bench = AuditFederations(own, rounds=1, hospitals=2)
    for section in ("intermediaries", "clipping", "privacy"):
        resolved, given = getattr(bench.experiment, section), getattr(own, section)
        assert resolved.model_dump(exclude={"delta"}) == given.model_dump(exclude={"delta"})
    assert bench.experiment.server.optimizer == "fedadam"
    assert (bench.experiment.rounds, bench.experiment.budget) == (1, None)
    v = math.floor(math.sqrt(0.5 * math.sqrt(len(bench.start)) / 2))  # the closed form, on the small network
    found = audit(AuditSettings(own, runs=20, rounds=1, hospitals=2))
    assert found.intermediaries == bench.parts == v
    assert found.hospital.claimed_mu == pytest.approx(v / 0.5)
    assert found.intermediary.claimed_mu == pytest.approx(1 / 0.5)


@pytest.mark.parametrize("sabotaged", [False, True])
def test_the_recipe_for_hospitals_is_audited_at_its_own_epsilon(
    sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its budget sets the noise, for the audit's rounds too; a sixth of it is noticed."""
    recipe = Experiment.load("prostate-hospital", {"budget.epsilon": 1.0, "privacy.delta": 0.1})
    if sabotaged:
        missing(6.0, "seed", monkeypatch)
    found = audit(
        AuditSettings(recipe, runs=40, rounds=2, hospitals=2, confidence=0.99 if sabotaged else SURE)
    )
    assert found.hospital.claimed == pytest.approx(1.0, rel=1e-3)
    assert found.hospital.verdict == ("broken" if sabotaged else "holds")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"clipping__rule": "median"},
            "clipping.rule = median: ε does not cover .* choose quantile or fixed",
        ),
        ({"intermediaries__rule": "adaptive"}, "intermediaries.rule = adaptive: ε does not cover .* choose"),
        ({"privacy__noise_multiplier": 0.0}, "privacy.noise_multiplier = 0: .* choose"),
        (
            {"participation__rule": "poisson", "participation__rate": 0.5},
            "participation.rule = poisson: .*all",
        ),
        ({"participation__rule": "fraction", "participation__rate": 0.5}, "participation.rule = fraction: "),
        (
            {"privacy__level": "sample", "clipping__rule": "none", "intermediaries__count": 1},
            "privacy.level = sample: .* choose client",
        ),
    ],
)
def test_what_makes_no_claim_that_could_be_tested_is_refused(changes: dict[str, Any], message: str) -> None:
    changed = EXPERIMENT.change(model__norm="group", **changes)
    with pytest.raises(InputError, match=f"^{message}"):
        AuditSettings(changed)


@pytest.mark.parametrize("preset", ["prostate-paper", "ich-paper"])
def test_the_papers_own_rules_are_refused_in_one_line(preset: str) -> None:
    with pytest.raises(InputError, match=r"^clipping.rule = median: [^\n]*$"):
        AuditSettings(Experiment.load(preset))


@pytest.mark.parametrize(
    ("field", "value"),
    [("runs", 19), ("rounds", 0), ("hospitals", 1), ("confidence", 1.0), ("confidence", 0.4)],
)
def test_bad_settings_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^{field} = {value}: .*(use|choose)"):
        AuditSettings(**{field: value})  # type: ignore[arg-type]
