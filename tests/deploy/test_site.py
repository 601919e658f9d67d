"""A site checks every request: what was not agreed on, or is beyond its limits, is refused."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from network import REHEARSAL, Federation, priced

from silodp import Experiment
from silodp.deploy.agreement import Agreement
from silodp.deploy.envelope import Reply, Request, seal
from silodp.deploy.last_answer import LastAnswer
from silodp.deploy.limits import Limits
from silodp.deploy.run import _engine as engine_of
from silodp.deploy.run import collect_facts, deployable, make_agreement
from silodp.deploy.site import Site
from silodp.errors import InputError
from silodp.federation import first_intermediaries
from silodp.hospital import Hospital
from silodp.messages import Contribution, RoundPlan
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.ledger import read_ledger
from silodp.runs.build import derive, with_origin
from silodp.runs.parts import Public
from silodp.update_map import UpdateMap

NAME = "hospital-0"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny(experiment: Experiment) -> Experiment:
    return deployable(priced(experiment))


class Asked:
    """A coordinator's side of one site, message by message."""

    def __init__(self, experiment: Experiment, folder: Path, limits: Limits = REHEARSAL) -> None:
        self.hospitals = Federation(folder, limits)
        self.files = self.hospitals.files(NAME)
        engine = engine_of(self.hospitals.coordinator(), experiment, "a" * 32, self.hospitals.out)
        facts = collect_facts(engine, experiment)
        self.public: Public = derive(with_origin(experiment), facts, CPU)
        self.agreement = make_agreement(engine, self.public)

    @property
    def site(self) -> Site:
        return self.hospitals.sites[NAME]

    def restart(self) -> None:
        self.hospitals.start(NAME)

    def send(
        self, kind: str, payload: bytes = b"", key: Ed25519PrivateKey | None = None, **fields: Any
    ) -> Reply:
        request = Request(kind, "a" * 32, NAME, payload=payload)  # type: ignore[arg-type]
        sealed = seal(replace(request, **fields), key or self.hospitals.key)
        return self.hospitals.opened(NAME, self.site.handle(sealed))

    def agree(self, agreement: Agreement | None = None) -> Reply:
        content = (agreement or self.agreement).to_bytes()
        signature = self.hospitals.key.sign(content).hex()
        return self.send("agree", content, about={"signature": signature})

    def plan(self, number: int = 1, **changes: Any) -> RoundPlan:
        experiment, mechanism = self.public.experiment, self.public.mechanism
        room = {one.name: one.most_intermediaries for one in self.public.facts}
        v, _ = first_intermediaries(experiment, len(self.public.model), 3, room)
        bound = experiment.clipping.first_bound()
        events, model = mechanism.events(number, v, bound, False), self.public.model
        plan = RoundPlan(number, model.values.clone(), v, bound, events=events, model=model.identity)
        return replace(plan, **changes)

    def train(self, plan: RoundPlan) -> Reply:
        return self.send("plan", plan.to_bytes())


@pytest.fixture
def asked(tiny: Experiment, tmp_path: Path) -> Asked:
    return Asked(tiny, tmp_path)


@pytest.fixture
def agreed(asked: Asked) -> Asked:
    assert asked.agree().kind == "answer"
    return asked


def assert_refused(reply: Reply, words: str) -> None:
    assert reply.kind == "refusal", "it was answered"
    assert words in reply.reason
    assert reply.payload == b""


def test_what_was_agreed_on_is_answered_once_and_paid_for_before(agreed: Asked) -> None:
    plan = agreed.plan()
    first = agreed.train(plan)
    assert Contribution.from_bytes(first.payload).plan == plan.digest
    assert agreed.train(plan) == first
    agreed.restart()
    assert agreed.train(plan) == first, "after a restart"
    (event,) = read_ledger(agreed.files / "ledger.jsonl").events
    z = agreed.public.experiment.privacy.noise_multiplier
    assert (event.round, event.noise_multiplier, event.contributions) == (1, z, 1)
    assert agreed.site.spent(1e-2) == pytest.approx(gaussian_epsilon(1 / z, 1e-2), rel=1e-3)


PLANS: dict[str, tuple[Callable[[Asked], RoundPlan], str]] = {
    "a larger clip bound": (lambda one: one.plan(clip_bound=0.6), "C = 0.6, and 0.5 was agreed on"),
    "a smaller one": (lambda one: one.plan(clip_bound=0.4), "C = 0.4"),
    "more intermediaries": (lambda one: one.plan(intermediaries=2), "v = 2, and 1 was agreed on"),
    "less noise": (
        lambda one: one.plan(events=(replace(one.plan().events[0], noise_multiplier=0.1),)),
        "the noise on them",
    ),
    "no events": (lambda one: one.plan(events=()), "its releases"),
    "another model": (lambda one: one.plan(model="0" * 64), "another model"),
    "more numbers": (lambda one: one.plan(parameters=torch.zeros(7)), "another model"),
    "another start": (lambda one: one.plan(parameters=one.plan().parameters + 1), "other parameters"),
    "no numbers": (lambda one: one.plan(parameters=one.plan().parameters * math.nan), "not all finite"),
    "steps counted": (lambda one: one.plan(update_map=UpdateMap(per_step=True)), "in another scale"),
    "one number alone": (
        lambda one: one.plan(update_map=UpdateMap(divisor=torch.full_like(one.plan().parameters, 1e-6))),
        "in another scale",
    ),
    "a round too many": (lambda one: one.plan(4), "round 4, and 3 were agreed on"),
}


@pytest.mark.parametrize("what", PLANS)
def test_another_plan_is_refused_and_costs_nothing(agreed: Asked, what: str) -> None:
    plan, words = PLANS[what]
    assert_refused(agreed.train(plan(agreed)), words)
    assert agreed.site.ledger.events == []
    assert words in (agreed.files / "refusals.jsonl").read_text(encoding="utf-8")


def test_a_round_is_not_answered_for_another_theta(agreed: Asked) -> None:
    """Two updates of one round from two models would be two releases for the price of one."""
    assert agreed.train(agreed.plan()).kind == "answer"
    second = agreed.plan(2, parameters=agreed.plan().parameters + 0.01)
    assert agreed.train(second).kind == "answer"
    for again in (agreed.plan(2, parameters=agreed.plan().parameters + 0.02), agreed.plan(1)):
        assert_refused(agreed.train(again), "was answered by another plan")
    assert len(agreed.site.ledger.events) == 2


def test_an_evaluation_before_round_one_does_not_move_the_agreed_start(agreed: Asked) -> None:
    """The network is resident: evaluating other parameters leaves them in it."""
    other = agreed.plan().parameters + 1
    about = {"part": "test", "thorough": False, "batch": None}
    assert agreed.send("evaluate", bytes(other.numpy().data), about=about).kind == "answer"
    assert_refused(agreed.train(agreed.plan(parameters=other)), "other parameters")
    assert agreed.train(agreed.plan()).kind == "answer"


LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "epsilon": ({"epsilon": 3.9}, {}, "limits.epsilon = 3.9"),
    "delta": ({"delta": 1e-6, "epsilon": 4.0}, {}, "limits.epsilon = 4: this would bring the hospital to"),
    "its own delta": ({}, {"privacy__delta": 0.2}, "limits.delta: the agreement's δ is 0.2"),
    "no noise": ({}, {"budget": None, "privacy__noise_multiplier": 0.0}, "bring the hospital to ε = inf"),
    "noise": ({"noise_multiplier_at_least": 50.0}, {}, "limits.noise_multiplier_at_least = 50"),
    "clip bound": ({"clip_bound_at_most": 0.1}, {}, "limits.clip_bound_at_most = 0.1: C = 0.5 is asked for"),
    "splitting": ({"intermediaries_at_most": 1}, {"intermediaries__count": 2}, "at_most = 1: v = 2 is asked"),
    "rounds": ({"rounds_at_most": 2}, {}, "limits.rounds_at_most = 2: 3 are asked for"),
    "hospitals": ({"hospitals_at_most": 2}, {}, "limits.hospitals_at_most = 2: 3 are asked for"),
    "parameters": ({"parameters_at_most": 5}, {}, "limits.parameters_at_most = 5"),
    "seed": ({"seeded_noise": False}, {"privacy__entropy": "seed"}, "privacy.entropy = seed"),
}


@pytest.mark.parametrize("what", LIMITS)
def test_an_agreement_beyond_a_limit_is_not_signed(what: str, tiny: Experiment, tmp_path: Path) -> None:
    limits, changes, words = LIMITS[what]
    asked = Asked(tiny.change(**changes), tmp_path, REHEARSAL.model_copy(update=limits))
    assert_refused(asked.agree(), words)
    assert_refused(asked.train(asked.plan()), "nothing was agreed on")


def test_a_hospital_that_sets_its_own_delta_is_held_to_its_limit_there(
    tiny: Experiment, tmp_path: Path
) -> None:
    """δ = 0.1, at which the ε = 4 of the agreement's δ = 0.01 is less."""
    own = REHEARSAL.model_copy(update={"epsilon": 3.5, "delta": 0.1})
    assert Asked(tiny, tmp_path, own).agree().kind == "answer"


def test_a_site_computes_with_the_threads_that_were_agreed_on(tiny: Experiment, tmp_path: Path) -> None:
    """The rounding of its sums depends on their number."""
    asked, before = Asked(tiny.change(threads=2), tmp_path), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert asked.agree().kind == "answer"
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_limit_is_for_all_runs_together(tiny: Experiment, tmp_path: Path) -> None:
    """A second run, equal to the first to its first plan, is paid for apart; and its price is too much."""
    hospitals = Federation(tmp_path, REHEARSAL.model_copy(update={"epsilon": 5.0}))
    hospitals.run(tiny)
    assert hospitals.sites[NAME].spent(1e-2) == pytest.approx(4.0, rel=1e-3)
    with pytest.raises(
        InputError, match=r"hospital-0 does not sign the agreement: limits.epsilon = 5: this would"
    ):
        hospitals.run(tiny, out=tmp_path / "two")
    assert len(hospitals.sites[NAME].ledger.events) == 3


def test_limits_that_are_lowered_after_signing_hold_at_once(agreed: Asked) -> None:
    assert agreed.train(agreed.plan()).kind == "answer"
    agreed.hospitals.limits = REHEARSAL.model_copy(update={"epsilon": 3.5})
    agreed.restart()
    assert agreed.train(agreed.plan(2)).kind == "answer"
    assert_refused(agreed.train(agreed.plan(3)), "limits.epsilon = 3.5: this would bring the hospital to")
    assert len(agreed.site.ledger.events) == 2


def test_what_a_round_costs_is_on_disk_before_anybody_trains(
    agreed: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def answer(self: Hospital, plan: RoundPlan) -> object:
        seen.append(len(read_ledger(agreed.files / "ledger.jsonl").events))
        raise RuntimeError("the power fails")

    monkeypatch.setattr(Hospital, "answer", answer)
    assert agreed.train(agreed.plan()).kind == "refusal"
    assert seen == [1]


@pytest.mark.parametrize("bound", [math.inf, 0.51 * math.exp(0.2), 0.49 * math.exp(-0.2), 1e-30])
def test_a_bound_that_moves_goes_no_farther_than_its_rule(
    bound: float, tiny: Experiment, tmp_path: Path
) -> None:
    """Quantile clipping, η = 0.2: in two rounds C moves by a factor of exp(±0.2) at most."""
    limits = REHEARSAL.model_copy(update={"clip_bound_at_most": 0.56})
    asked = Asked(tiny.change(clipping={"rule": "quantile", "bound": 0.5}), tmp_path, limits)
    assert asked.agree().kind == "answer"
    mechanism = asked.public.mechanism
    for fine in (0.5 * math.exp(0.1), 0.5 * math.exp(-0.1)):
        plan = asked.plan(2, clip_bound=fine, events=mechanism.events(2, 1, fine, False))
        assert asked.train(replace(plan, round=2)).kind == ("answer" if fine > 0.5 else "refusal")  # once
    other = asked.plan(3, clip_bound=bound, events=mechanism.events(3, 1, bound, False))
    assert_refused(asked.train(other), "was agreed on")
    high = 0.5 * math.exp(0.2 * 0.9)
    limited = asked.plan(3, clip_bound=high, events=mechanism.events(3, 1, high, False))
    assert_refused(asked.train(limited), "limits.clip_bound_at_most = 0.56")


def test_hospitals_that_were_made_up_do_not_thin_the_noise(tiny: Experiment, tmp_path: Path) -> None:
    """With shared noise each of a thousand hospitals adds a thousandth; the coordinator sees one share."""
    limits = REHEARSAL.model_copy(update={"coordinator_epsilon": 20.0})
    asked = Asked(tiny.change(privacy__noise="shared"), tmp_path, limits)
    assert asked.agree().kind == "answer"
    few = replace(asked.agreement.facts[1], name="ghost")
    ghosts = tuple(replace(few, name=f"ghost-{number}") for number in range(300))
    facts = (*asked.agreement.facts, *ghosts)
    public = derive(with_origin(asked.agreement.read_experiment().change(cohort__hospitals=303)), facts, CPU)
    keys = {one.name: "0" * 64 for one in facts} | dict(asked.agreement.keys)
    swollen = replace(
        asked.agreement, run="b" * 32, facts=facts, keys=keys, experiment=public.experiment.to_toml(),
        model=public.model.identity,
    )  # fmt: skip
    content = swollen.to_bytes()
    about = {"signature": asked.hospitals.key.sign(content).hex()}
    reply = asked.send("agree", content, run="b" * 32, about=about)
    assert_refused(reply, "limits.coordinator_epsilon = 20: with 303 shares of noise")


def test_who_does_not_train_answers_no_plan(asked: Asked) -> None:
    """With others' sizes in its ledger the price would be somebody else's."""
    first, *rest = asked.agreement.facts
    text = asked.agreement.experiment.replace("[participation]", "[participation]\nmembers = 2")
    assert_refused(asked.agree(replace(asked.agreement, experiment=text)), "participation.members = 2")
    twice = replace(asked.agreement, facts=(first, first, *rest))
    assert_refused(asked.agree(twice), "names a hospital twice")


@pytest.mark.parametrize(
    "start", ["/etc/passwd", "../../x.safetensors", "nobody.safetensors", "/etc/nothing"]
)
def test_a_coordinator_cannot_ask_which_files_there_are(asked: Asked, start: str) -> None:
    head, _, tail = asked.agreement.experiment.partition("[model]\n")
    text = f'{head}[model]\nstart = "{start}"\n{tail}'
    reply = asked.agree(replace(asked.agreement, experiment=text))
    assert reply.kind == "refusal"
    known = "no such file among its starts" in reply.reason
    assert known == (start == "nobody.safetensors")
    assert "passwd" not in reply.reason or "log says why" in reply.reason


def test_a_run_whose_files_were_lost_is_paid_for_again(tiny: Experiment, tmp_path: Path) -> None:
    """With the files went the secret: the same plan would get other noise on the same sum."""
    asked = Asked(tiny.change(privacy__noise="shared"), tmp_path)
    answers = []
    for _ in range(2):
        asked.agree()
        answers.append(Contribution.from_bytes(asked.train(asked.plan()).payload).numbers)
        shutil.rmtree(asked.files / "runs")
        asked.restart()
    assert not torch.equal(*answers)
    assert len(asked.site.ledger.events) == 2


def test_a_larger_delta_does_not_open_a_full_ledger(tiny: Experiment, tmp_path: Path) -> None:
    hospitals = Federation(tmp_path, REHEARSAL.model_copy(update={"epsilon": 4.5}))
    hospitals.run(tiny)
    z = hospitals.sites[NAME].ledger.events[0].noise_multiplier
    assert gaussian_epsilon(math.sqrt(4) / z, 0.1) < 4.5 < gaussian_epsilon(math.sqrt(4) / z, 0.01)
    again = tiny.change(rounds=1, privacy__delta=0.1, budget=None, privacy__noise_multiplier=z)
    with pytest.raises(InputError, match=r"limits.epsilon = 4.5: this would bring .* \(δ 0.01\)"):
        hospitals.run(again, out=tmp_path / "two")


def test_kills_between_states_and_answer_leave_the_states_that_are_needed(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed twice with its states written and its answer not: it goes on from the last answer."""
    asked = Asked(tiny.change(local__state="kept", rounds=4), tmp_path)
    asked.agree()
    assert asked.train(asked.plan(1)).kind == "answer"
    write = LastAnswer.write
    for number in (2, 3):
        monkeypatch.setattr(LastAnswer, "write", lambda self, path: (_ for _ in ()).throw(OSError("killed")))
        assert asked.train(asked.plan(number)).kind == "refusal"
        monkeypatch.setattr(LastAnswer, "write", write)
        asked.restart()
    assert asked.train(asked.plan(4)).kind == "answer"


def test_paths_of_the_hospital_do_not_leave_it(agreed: Asked, tmp_path: Path) -> None:
    agreed.train(agreed.plan(1))
    (agreed.files / "runs" / ("a" * 32) / "answered").write_bytes(b"damaged")
    reply = agreed.train(agreed.plan(2))
    assert_refused(reply, "its log says why")
    assert str(tmp_path) not in reply.reason


AGREEMENTS: dict[str, tuple[Callable[[Asked], Agreement], str]] = {
    "a price too low": (lambda one: replace(one.agreement, epsilon=1.0), "it says ε = 1"),
    "another model": (lambda one: replace(one.agreement, model="0" * 64), "do not follow from"),
    "other data": (
        lambda one: replace(
            one.agreement, facts=(replace(one.agreement.facts[0], train=99), *one.agreement.facts[1:])
        ),
        "do not match the hospital's data",
    ),
    "another key": (
        lambda one: replace(one.agreement, keys={**one.agreement.keys, NAME: "0" * 64}),
        "another key for hospital-0",
    ),
    "another run": (lambda one: replace(one.agreement, run="b" * 32), "to another run"),
    "other settings": (
        lambda one: replace(
            one.agreement, experiment=one.agreement.experiment.replace("rounds = 3", "rounds = 2")
        ),
        "and its rounds cost 3.03",
    ),
}


@pytest.mark.parametrize("what", AGREEMENTS)
def test_an_agreement_that_does_not_follow_is_not_signed(asked: Asked, what: str) -> None:
    agreement, words = AGREEMENTS[what]
    assert_refused(asked.agree(agreement(asked)), words)


def test_once_signed_an_agreement_is_not_exchanged(asked: Asked) -> None:
    assert asked.agree() == asked.agree()
    assert_refused(asked.agree(replace(asked.agreement, delta=0.02)), "another one was signed for this run")


def test_an_agreement_needs_the_coordinators_own_signature(asked: Asked) -> None:
    content = asked.agreement.to_bytes()
    for signature in ("", "00" * 64, Ed25519PrivateKey.generate().sign(content).hex()):
        reply = asked.send("agree", content, about={"signature": signature})
        assert_refused(reply, "the coordinator's signature on it is not valid")
    assert_refused(asked.train(asked.plan()), "nothing was agreed on")


def test_strangers_and_messages_for_others_get_nowhere(agreed: Asked) -> None:
    content = agreed.plan().to_bytes()
    stranger = Ed25519PrivateKey.generate()
    assert_refused(agreed.send("plan", content, key=stranger), "signed by another key")
    assert_refused(
        agreed.send("plan", content, key=agreed.hospitals.keys["hospital-1"]), "signed by another key"
    )
    assert_refused(agreed.send("plan", content, hospital="hospital-1"), "and this is hospital-0")
    for run in ("../../etc", "a" * 65):  # it becomes the name of a folder
        assert_refused(agreed.send("plan", content, run=run), "its run number is malformed")
    assert_refused(agreed.send("plan", content[:-9]), "plan")
    assert agreed.site.ledger.events == []


def test_figures_stay_unless_its_people_let_them_out(tiny: Experiment, tmp_path: Path) -> None:
    quiet = REHEARSAL.model_copy(update={"validation_metrics": False})
    asked = Asked(tiny, tmp_path / "quiet", quiet)
    asked.agree()
    payload = bytes(asked.plan().parameters.numpy().data)
    about = {"part": "test", "thorough": False, "batch": None}
    assert_refused(asked.send("evaluate", payload, about=about), "metrics do not leave this hospital")
    open_ = Asked(tiny, tmp_path / "open")
    open_.agree()
    assert open_.send("evaluate", payload, about=about).kind == "answer"
    assert_refused(open_.send("evaluate", payload[:-4], about=about), "parameters were agreed on")
    assert_refused(open_.send("evaluate", payload, about={**about, "part": "train"}), "'train' with batch")
    other = {**about, "batch": "patient"}
    assert_refused(open_.send("evaluate", payload, about=other), "with batch 'patient' is not possible")


@pytest.mark.parametrize("error", [RuntimeError, InputError])
def test_what_goes_wrong_at_a_site_tells_nothing_of_its_data(
    asked: Asked, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def load(experiment: Experiment) -> Any:
        raise error("cannot read /data/patients/Maria_Muster.dcm")

    asked.site._load, asked.site._data = load, None
    reply = asked.agree()
    assert_refused(reply, "its log says why")
    assert "Muster" not in str(reply)
    assert "Muster" in caplog.text
    assert "Muster" not in (asked.files / "refusals.jsonl").read_text(encoding="utf-8")


def test_a_statement_says_what_the_hospitals_own_ledger_says(tiny: Experiment, tmp_path: Path) -> None:
    import json

    hospitals = Federation(tmp_path)
    for noise in ("central", "shared"):
        folder = tmp_path / noise
        asked = tiny.change(privacy__noise=noise)
        hospitals.run(asked, out=folder)
        for name, key in hospitals.keys.items():
            place = folder / "deployment" / "statements" / f"{name}.json"
            key.public_key().verify(place.with_suffix(".json.sig").read_bytes(), place.read_bytes())
            said = json.loads(place.read_text(encoding="utf-8"))
            assert said["epsilon"]["outside"] == pytest.approx(4.0, rel=1e-3)
            assert (said["epsilon"]["coordinator"] is None) == (noise == "central")
            assert said["last_round"] == said["releases"] == 3
    two_runs = said["epsilon_of_all_runs"]
    mu = math.sqrt(6) / hospitals.sites[NAME].ledger.events[0].noise_multiplier
    assert two_runs == pytest.approx(gaussian_epsilon(mu, 1e-2), rel=1e-3)
