"""Noise that hospitals add: as much as the server's, however many of those who may stay away do."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import blob_cohort
from scipy.stats import chi2

from silodp import Cohort, Experiment, InputError, build, resume, train
from silodp.clipping import FixedClipping, QuantileClipping
from silodp.engines.in_process import InProcess
from silodp.hospital import Hospital
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, Release, RoundPlan
from silodp.noise.lattice import spacing
from silodp.noise.streams import keyed_noise, noise_of, seeded_noise, system_noise
from silodp.participation import Everyone
from silodp.privacy.gaussian import gaussian_epsilon

SIZE, Z = 20_000, 0.7
NAMES = ["a", "b", "c", "d"]


def mechanism_of(shares: int) -> Mechanism:
    return Mechanism(Z, FixedClipping(), Everyone(), 4, shares=shares)


def plan(v: int = 2) -> RoundPlan:
    return RoundPlan(3, torch.zeros(SIZE), v, 0.5)


def answer(mechanism: Mechanism, asked: RoundPlan, name: str, seed: int | None = 0) -> Contribution:
    silent = (torch.zeros(SIZE) for _ in range(asked.intermediaries))
    numbers, _ = mechanism.encode(asked, silent, name, noise_of(seed, asked.round))
    return Contribution(name, asked.round, asked.digest, numbers)


def released(mechanism: Mechanism, asked: RoundPlan, answering: int, seed: int | None = 0) -> Release:
    answers = [answer(mechanism, asked, name, seed) for name in NAMES[:answering]]
    return mechanism.decode(asked, NAMES, answers, noise_of(seed, asked.round))[0]


def is_normal_with(std: float, numbers: torch.Tensor) -> bool:
    """The sum of squares is χ² distributed; one in ten million is refused on either side."""
    squares = float((numbers.double() / std).square().sum())
    return bool(chi2.ppf(1e-7, len(numbers)) < squares < chi2.ppf(1 - 1e-7, len(numbers)))


@pytest.mark.parametrize("seed", [0, None], ids=["seed", "system"])
@pytest.mark.parametrize(("away", "answering"), [(0, 4), (1, 4), (1, 3), (3, 4), (3, 1)])
def test_the_noise_is_full_with_those_who_must_be_there_and_more_with_others(
    away: int, answering: int, seed: int | None
) -> None:
    """Each share has 1/(N − k) of the variance (zC)²: with n hospitals there it is n/(N − k) times that."""
    release = released(mechanism_of(4 - away), plan(), answering, seed)
    std = Z * 0.5 * math.sqrt(answering / (4 - away)) / (4 * 2)
    assert is_normal_with(std, release.mean)
    assert release.noise_std == pytest.approx(std, rel=1e-5)
    assert release.noise_std >= Z * 0.5 / (4 * 2)
    (event,) = release.events
    assert event.noise_multiplier == Z  # what is counted is what is there at the least


@pytest.mark.parametrize(("away", "answering"), [(0, 3), (1, 2), (3, 0)])
def test_a_round_without_enough_shares_releases_nothing(away: int, answering: int) -> None:
    with pytest.raises(InputError, match=rf"round 3: {answering} hospitals answered, and the noise"):
        released(mechanism_of(4 - away), plan(), answering)


def test_a_malformed_or_doubled_answer_is_no_share() -> None:
    mechanism, asked = mechanism_of(4), plan()
    good = [answer(mechanism, asked, name) for name in NAMES]
    bad = replace(good[3], numbers=good[3].numbers + 0.5)
    for answers in ([*good[:3], bad], [*good[:3], good[0]], [*good[:3], replace(good[3], hospital="e")]):
        with pytest.raises(InputError, match="3 hospitals answered"):
            mechanism.decode(asked, NAMES, answers, system_noise)
    assert mechanism.decode(asked, NAMES, good, system_noise)[0].absent == {}


def test_a_contribution_leaves_as_whole_numbers_with_a_share_of_its_own() -> None:
    mechanism, asked = mechanism_of(3), plan()
    sent = {name: answer(mechanism, asked, name).numbers for name in NAMES}
    for numbers in sent.values():
        assert torch.equal(numbers, numbers.round())
        units = Z * 0.5 / math.sqrt(3) / spacing(0.5, SIZE)
        assert is_normal_with(units, numbers[:-1])
    for one in NAMES:
        for other in NAMES[: NAMES.index(one)]:
            together = float(torch.corrcoef(torch.stack([sent[one][:-1], sent[other][:-1]]))[0, 1])
            assert abs(together) < 6 / math.sqrt(SIZE)
    assert torch.equal(
        answer(mechanism, asked, "a").numbers, sent["a"]
    )  # from the seed: the same round again
    assert not torch.equal(answer(mechanism, replace(asked, round=4), "a").numbers, sent["a"])
    assert not torch.equal(
        answer(mechanism, asked, "a", None).numbers, answer(mechanism, asked, "a", None).numbers
    )


def test_the_quantile_bits_are_noised_at_the_hospitals_too() -> None:
    """300 rounds of nobody's bits: the fraction below C spreads by z_b/2·√(n/(N − k))/(N·v) around a half."""
    mechanism = Mechanism(Z, QuantileClipping(), Everyone(), 4, shares=3)
    found = []
    for number in range(300):
        asked = RoundPlan(number + 1, torch.zeros(3), 2, 0.5)
        sent = []
        for name in NAMES:
            numbers, _ = mechanism.encode(asked, (torch.full((3,), math.nan) for _ in range(2)), name,
                                     seeded_noise(1, number))  # fmt: skip
            sent.append(Contribution(name, asked.round, asked.digest, numbers))
        fraction = mechanism.decode(asked, NAMES, sent, system_noise)[0].fraction_below
        assert fraction is not None
        found.append(fraction - 0.5)
    of_bits = Z / math.sqrt(0.05)
    assert is_normal_with(of_bits / 2 * math.sqrt(4 / 3) / 8, torch.tensor(found, dtype=torch.float64))


def test_a_hospital_that_lies_is_held_to_what_it_could_say_with_its_share() -> None:
    mechanism, asked = mechanism_of(4), plan()
    good = [answer(mechanism, asked, name) for name in NAMES]
    liar = replace(good[0], numbers=torch.full((SIZE + 1,), 2.0**40, dtype=torch.float64))
    release = mechanism.decode(asked, NAMES, [liar, *good[1:]], system_noise)[0]
    share = Z * 0.5 / 2
    most = 2 * 0.5 + share * (math.sqrt(SIZE) + 11) + share * math.sqrt(3) * (math.sqrt(SIZE) + 11)
    assert float(release.mean.double().norm()) * 8 <= most * 1.001


@pytest.fixture
def shared(experiment: Experiment) -> Experiment:
    return experiment.change(
        privacy={"noise": "shared", "may_stay_away": 1, "noise_multiplier": 0.5}, diagnostics=False
    )


class Away(InProcess):
    """The first `count` hospitals never answer; `seen` gets what the others say in round one."""

    def __init__(
        self,
        hospitals: Sequence[Hospital],
        count: int,
        seen: list[dict[str, torch.Tensor]] | None = None,
    ) -> None:
        super().__init__(hospitals)
        self.count, self.seen = count, seen

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        answers = list(super().train(plan, asked[self.count :], diagnose=diagnose))
        if plan.round == 1 and self.seen is not None:
            self.seen.append({one.hospital: one.numbers for one in answers})
        return iter(answers)


def test_a_run_is_accounted_as_with_central_noise(shared: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    for away in (0, 1):
        out = tmp_path / f"{away} away"
        result = train(shared, cohort=cohort, engine=partial(Away, count=away), out=out, device="cpu")
        assert result.epsilon.hospital == pytest.approx(gaussian_epsilon(math.sqrt(3) * 2 / 0.5, 0.1))
        assert "one share of the noise only" in " ".join(result.summary["not_covered_by_epsilon"])
        line = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
        there = 3 - away
        of_update = 0.5 / math.sqrt(0.95)
        assert line["noise_std"] == pytest.approx(of_update * 0.5 * math.sqrt(there / 2) / 6, rel=1e-5)
        assert line["xi"] is None


def test_a_run_that_lacks_hospitals_stops_and_goes_on_when_they_are_back(
    shared: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="round 1: 1 hospitals answered, and the noise is full with 2"):
        train(shared, cohort=cohort, engine=partial(Away, count=2), out=tmp_path / "run", device="cpu")
    assert (tmp_path / "run/ledger.jsonl").read_text() == ""
    back = resume(tmp_path / "run", cohort=cohort, device="cpu")
    whole = train(shared, cohort=cohort, out=tmp_path / "whole", device="cpu")
    assert back.summary["model"] == whole.summary["model"]


def test_asked_twice_a_hospital_gives_the_same_share(shared: Experiment, cohort: Cohort) -> None:
    """Two shares on the same sum would be two releases; with fresh states it must remember all the same."""
    secret = shared.change(local__state="fresh", privacy__entropy="system")
    parts = build(secret, cohort=cohort, device="cpu")
    asked = RoundPlan(1, parts.model.values.clone(), 2, 0.5)
    names = [hospital.name for hospital in cohort.hospitals]
    first, again = (list(parts.engine.train(asked, names)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.numbers, other.numbers)
    (later,) = parts.engine.train(replace(asked, round=2), names[:1])
    assert not torch.equal(later.numbers, first[0].numbers)


def test_at_least_one_hospital_must_be_required(shared: Experiment) -> None:
    with pytest.raises(InputError, match=r"privacy\.may_stay_away = 3: 3 hospitals train; set it"):
        build(shared.change(privacy__may_stay_away=3), cohort=blob_cohort(3), device="cpu")


@pytest.mark.parametrize("shares", [0, 4])
def test_bits_that_are_not_released_are_not_sent(shares: int) -> None:
    """With a fixed C nobody adds noise to them: the exact count of short updates would leave the hospital."""
    asked = plan(v=4)
    for lengths in ([0.1] * 4, [0.1, 9.0, 9.0, 9.0]):
        updates = (torch.full((SIZE,), length / math.sqrt(SIZE)) for length in lengths)
        numbers, _ = mechanism_of(shares).encode(asked, updates)
        assert float(numbers[-1]) == 0


def test_a_round_redone_after_a_stop_has_the_same_shares(
    shared: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """The server has seen two contributions when the round failed; other shares on these sums would be more.

    The secrets that they come from lie with the hospitals, and go with the run.
    """
    seen: list[dict[str, torch.Tensor]] = []
    secret = shared.change(privacy__entropy="system", privacy__may_stay_away=0, local__state="fresh")
    with pytest.raises(InputError, match="round 1: 2 hospitals answered"):
        train(
            secret,
            cohort=cohort,
            engine=partial(Away, count=1, seen=seen),
            out=tmp_path / "run",
            device="cpu",
        )
    secrets = list((tmp_path / "run/hospitals").glob("*/secret"))
    assert len({path.read_bytes() for path in secrets}) == 3
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}
    resume(tmp_path / "run", cohort=cohort, engine=partial(Away, count=0, seen=seen), device="cpu")
    first, again = seen
    assert len(first) == 2
    assert all(torch.equal(again[name], first[name]) for name in first)
    assert not (tmp_path / "run/hospitals").exists()


def test_keyed_noise_is_normal_the_same_for_one_sum_and_unrelated_for_another() -> None:
    hidden, a, b = torch.zeros(SIZE, dtype=torch.float64), b"a" * 32, b"b" * 32
    asked = [(a, 1, 0, "x"), (a, 1, 0, "x"), (b, 1, 0, "x"), (a, 2, 0, "x"), (a, 1, 1, "x"), (a, 1, 0, "y")]
    draws = [keyed_noise(key, number)(hidden + shift, text, SIZE) for key, number, shift, text in asked]
    assert torch.equal(draws[0], draws[1])
    assert all(is_normal_with(1.0, one) for one in draws)
    for other in draws[2:]:
        assert abs(float(torch.corrcoef(torch.stack([draws[0], other]))[0, 1])) < 6 / math.sqrt(SIZE)
