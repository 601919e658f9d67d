"""Intermediaries: how a hospital is split, and where the rules for v settle."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from silodp.intermediary import IntermediaryRule, Ratio, closed_form
from silodp.local.splitting import most_intermediaries, split, split_sizes

U_NET = 7_756_577
ESTIMATING = ("adaptive", "initial", "stable", "progressive")


def rule(name: str, count: int = 1) -> IntermediaryRule:
    return IntermediaryRule.of(rule=name, **({} if name == "closed-form" else {"count": count}))


def measured(lambda_: float) -> Ratio:
    return Ratio(noise_norm=lambda_, sum_of_norms=1.0, norm_of_sum=0.5)


def ideal(z: float, parameters: int, hospitals: float, count: int) -> Ratio:
    """λ where every norm is C: ‖ζ‖ = z·C·√d/(N·v) against Σ‖Δ‖ = N·v·C."""
    return Ratio(z * math.sqrt(parameters) / (hospitals * count), hospitals * count, 1.0)


@settings(max_examples=50, deadline=None)
@given(samples=st.integers(0, 500), count=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_split_is_disjoint_and_complete(samples: int, count: int, seed: int) -> None:
    parts = split(samples, count, torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(parts).tolist()) == list(range(samples))
    sizes = [len(part) for part in parts]
    assert sizes == split_sizes(samples, count)
    assert len(sizes) == count
    assert max(sizes) - min(sizes) <= 1


def test_split_shuffles_by_its_generator() -> None:
    first, again, other = (split(100, 3, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.tolist() != sorted(first.tolist())


@pytest.mark.parametrize(
    ("smallest", "min_samples", "expected"), [(285, 2, 142), (10, 5, 2), (9, 5, 1), (4, 5, 1), (7, 1, 7)]
)
def test_most_intermediaries_leaves_each_enough_images(
    smallest: int, min_samples: int, expected: int
) -> None:
    assert most_intermediaries(smallest, min_samples) == expected
    if smallest >= min_samples:
        assert min(split_sizes(smallest, expected)) >= min_samples
        assert min(split_sizes(smallest, expected + 1)) < min_samples


@settings(max_examples=50, deadline=None)
@given(noise=st.floats(1e-6, 1e6), total=st.floats(1e-6, 1e6), summed=st.floats(1e-6, 1e6))
def test_lambda_is_xi_over_phi(noise: float, total: float, summed: float) -> None:
    ratio = Ratio(noise, total, summed)
    assert ratio.xi == pytest.approx(noise / summed)
    assert ratio.phi == pytest.approx(total / summed)
    assert ratio.lambda_ == pytest.approx(ratio.xi / ratio.phi)
    nobody = Ratio(noise, 0.0, 0.0)
    assert nobody.xi == nobody.phi == nobody.lambda_ == math.inf


@pytest.mark.parametrize(
    ("z", "parameters", "hospitals", "expected"),
    [
        (0.3, U_NET, 6, 11.8),
        (0.5, U_NET, 6, 15.2),
        (0.7, U_NET, 6, 18.0),
        (0.5, 6_950_000, 20, 8.1),
        (1.0, 6_950_000, 20, 11.5),
        (1.5, 6_950_000, 20, 14.1),
    ],
)
def test_closed_form_gives_the_printed_counts(
    z: float, parameters: int, hospitals: int, expected: float
) -> None:
    assert round(closed_form(z, parameters, hospitals), 1) == expected
    assert rule("closed-form").first_count(z, parameters, hospitals) == math.floor(expected)


def test_without_noise_nobody_is_split() -> None:
    assert rule("closed-form").first_count(0.0, U_NET, 6) == 1
    assert rule("adaptive").next_count(12, 2, measured(0.0), 6) == 1


@pytest.mark.parametrize("name", [*ESTIMATING, "fixed"])
def test_other_rules_start_from_their_count(name: str) -> None:
    assert rule(name, 7).first_count(0.5, U_NET, 6) == 7


@settings(max_examples=50, deadline=None)
@given(
    z=st.floats(0.1, 4),
    parameters=st.integers(1_000, 10**8),
    hospitals=st.integers(1, 100),
    start=st.integers(1, 60),
)
def test_adaptive_settles_at_the_closed_form(z: float, parameters: int, hospitals: int, start: int) -> None:
    count = start
    for round_ in range(1, 15):
        count = rule("adaptive").next_count(count, round_, ideal(z, parameters, hospitals, count), hospitals)
    target = max(1.0, math.sqrt(z * math.sqrt(parameters) / hospitals))
    assert abs(count - target) <= 1


@settings(max_examples=50, deadline=None)
@given(z=st.floats(0.1, 4), parameters=st.integers(1_000, 10**8), hospitals=st.integers(1, 100))
def test_progressive_climbs_without_overshooting(z: float, parameters: int, hospitals: int) -> None:
    counts = [1]
    for round_ in range(1, 30):
        lambda_ = ideal(z, parameters, hospitals, counts[-1])
        counts.append(rule("progressive").next_count(counts[-1], round_, lambda_, hospitals))
    target = max(1.0, math.sqrt(z * math.sqrt(parameters) / hospitals))
    assert counts == sorted(counts)
    assert target - 2 <= counts[-1] <= target


# sqrt(N·λ) is 2.5, √3, ½ and ⅒ in turn, from v = 5.
@pytest.mark.parametrize(
    ("hospitals", "lambda_", "adaptive", "stable", "progressive"),
    [(4, 6.25 / 4, 12, 10, 8), (6, 0.5, 8, 5, 6), (6, 1 / 24, 2, 2, 2), (1, 0.01, 1, 1, 1)],
)
def test_each_rule_by_hand(
    hospitals: int, lambda_: float, adaptive: int, stable: int, progressive: int
) -> None:
    seen = {name: rule(name).next_count(5, 1, measured(lambda_), hospitals) for name in ESTIMATING}
    assert seen == {
        "adaptive": adaptive,
        "initial": adaptive,
        "stable": stable,
        "progressive": progressive,
    }


def test_initial_estimates_in_round_one_only() -> None:
    assert rule("initial").next_count(5, 1, measured(1.0), 4) == 10
    assert [rule("initial").reads(number) for number in (1, 2, 3)] == [True, False, False]
    assert all(rule("adaptive").reads(number) for number in (1, 2, 3))


@pytest.mark.parametrize("name", ["fixed", "closed-form"])
def test_public_rules_ignore_what_was_measured(name: str) -> None:
    assert rule(name, 3).next_count(3, 1, measured(100.0), 6) == 3
    assert not any(rule(name).reads(number) for number in (1, 2, 3))
    assert rule(name).uncovered == ""


@pytest.mark.parametrize("name", ESTIMATING)
@pytest.mark.parametrize("ratio", [measured(math.inf), measured(math.nan), Ratio(1.0, 0.0, 0.0)])
def test_a_round_that_measured_nothing_leaves_v(name: str, ratio: Ratio) -> None:
    assert rule(name).next_count(7, 1, ratio, 6) == 7


people = st.lists(st.integers(0, 12), min_size=1, max_size=80)


@settings(max_examples=100, deadline=None)
@given(people=people, seed=st.integers(0, 2**32), data=st.data())
def test_a_patient_is_in_one_intermediary_only(people: list[int], seed: int, data: st.DataObject) -> None:
    patients = torch.tensor(people)
    v = data.draw(st.integers(1, most_intermediaries(len(people), 1, patients)))
    parts = split(len(people), v, torch.Generator().manual_seed(seed), patients)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(people)))
    owners = [set(patients[part].tolist()) for part in parts]
    assert all(owners)
    assert sum(map(len, owners)) == len(set(people))


@settings(max_examples=100, deadline=None)
@given(people=people, seed=st.integers(0, 2**32), least=st.integers(1, 6))
def test_up_to_the_most_intermediaries_each_has_images_enough(
    people: list[int], seed: int, least: int
) -> None:
    patients = torch.tensor(people)
    most = most_intermediaries(len(people), least, patients)
    assert 1 <= most <= len(set(people))
    for v in range(2, most + 1):
        assert min(map(len, split(len(people), v, torch.Generator().manual_seed(seed), patients))) >= least
    beyond = split(len(people), most + 1, torch.Generator().manual_seed(seed), patients)
    assert min(map(len, beyond)) < least


def test_patients_of_one_size_make_equal_intermediaries() -> None:
    patients = torch.arange(12).repeat_interleave(5)
    parts = split(60, 4, torch.Generator().manual_seed(3), patients)
    assert [len(part) for part in parts] == [15] * 4
    other = split(60, 4, torch.Generator().manual_seed(4), patients)
    assert {frozenset(part.tolist()) for part in parts} != {frozenset(part.tolist()) for part in other}
