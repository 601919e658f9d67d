"""The mechanism. Each test names a way in which a guarantee could be broken."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from silodp.clipping import ClippingRule, FixedClipping, MedianClipping
from silodp.diagnostics import Unprotected
from silodp.local.sketch import sketch
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, Diagnostics, Release, RoundPlan
from silodp.noise.lattice import sensitivity, spacing, to_lattice
from silodp.noise.streams import NoiseSource, seeded_noise
from silodp.participation import Everyone

SIZE = 20_000
ALL = Everyone()


def mechanism_of(z: float, rule: str = "fixed", hospitals: float = 3, **clipping: float) -> Mechanism:
    return Mechanism(z, ClippingRule.of(rule=rule, **clipping), ALL, hospitals)


def plan(v: int = 2, bound: float = 1.0, size: int = SIZE) -> RoundPlan:
    return RoundPlan(1, torch.zeros(size), v, bound)


def contribution(
    mechanism: Mechanism, asked: RoundPlan, name: str, vector: Tensor, bits: float = 0.0
) -> Contribution:
    """A hospital's sum and its bits, which need not be true."""
    private = mechanism.noise_multiplier > 0 and math.isfinite(asked.bound)
    numbers = to_lattice(vector, spacing(asked.bound, len(asked.parameters))) if private else vector.double()
    sent = torch.cat([numbers, torch.tensor([bits], dtype=torch.float64) * 2**20])
    return Contribution(name, 1, asked.digest, sent)


def release(
    mechanism: Mechanism, asked: RoundPlan, *sent: tuple[Any, ...], seed: int = 0, estimates: bool = False
) -> Release:
    """What comes of these answers, each the last arguments of `contribution`."""
    asked = replace(asked, events=mechanism.events(1, asked.intermediaries, asked.clip_bound, estimates))
    answers = [contribution(mechanism, asked, *one) for one in sent]
    return mechanism.decode(asked, ("h0", "h1", "h2"), answers, same_noise(seed))[0]


def same_noise(seed: int) -> NoiseSource:
    """Noise that does not depend on what it hides, so that two releases can be compared."""

    def draw(hidden: Tensor, public: str, count: int) -> Tensor:
        chance = torch.Generator().manual_seed(seed + 2**40 * (public == "clip quantile"))
        return torch.randn(count, generator=chance, dtype=torch.float64)

    return draw


@settings(max_examples=20, deadline=None)
@given(
    z=st.floats(0.1, 3),
    bound=st.floats(0.01, 50),
    v=st.integers(1, 20),
    hospitals=st.integers(1, 20),
    seed=st.integers(0),
)
def test_noise_on_the_mean_has_standard_deviation_zC_over_Nv(
    z: float, bound: float, v: int, hospitals: int, seed: int
) -> None:
    seen = release(mechanism_of(z, hospitals=hospitals), plan(v, bound), seed=seed % 2**31)
    sigma = z * bound / (hospitals * v)
    assert sigma < seen.noise_std < sigma * 1.0001  # rounding counts as sensitivity, and is little
    # n·s²/σ² is χ² with n degrees of freedom: five standard deviations are 5·sqrt(2/n).
    assert float(seen.mean.double().square().mean()) == pytest.approx(sigma**2, rel=5 * math.sqrt(2 / SIZE))
    assert abs(float(seen.mean.double().mean())) < 5 * sigma / math.sqrt(SIZE)


def test_quantile_bits_and_update_together_cost_exactly_z() -> None:
    update, bits = release(mechanism_of(0.7, "quantile"), plan(v=5)).events
    assert (update.released, bits.released) == ("model update", "clip quantile")
    assert update.noise_multiplier**-2 + bits.noise_multiplier**-2 == pytest.approx(0.7**-2)
    assert update.hospital_mu == pytest.approx(5 / update.noise_multiplier)


def test_noise_on_the_bits_is_half_their_multiplier() -> None:
    mechanism = mechanism_of(1.0, "quantile", bit_share=0.25)
    asked = plan(v=1, size=1)
    values = torch.tensor(
        [release(mechanism, asked, seed=seed).fraction_below or 0.0 for seed in range(4000)]
    )
    # Nobody answered: ½, and noise z_b/2 on the sum with z_b = z/√share = 2, over 3 hospitals.
    assert float(values.mean()) == pytest.approx(0.5, abs=5 * (1 / 3) / math.sqrt(4000))
    assert float(values.std()) == pytest.approx(1 / 3, rel=5 / math.sqrt(2 * 4000))


def test_an_absent_hospital_changes_neither_denominator_nor_noise() -> None:
    mechanism, ones = mechanism_of(0.5), torch.full((SIZE,), 1e-3)
    everyone = release(mechanism, plan(), *((f"h{i}", ones) for i in range(3)))
    two = release(mechanism, plan(), *((f"h{i}", ones) for i in range(2)))
    assert two.noise_std == everyone.noise_std
    torch.testing.assert_close(everyone.mean - two.mean, ones / 6)
    assert two.absent == {"h2": "it did not answer"}


@settings(max_examples=30, deadline=None)
@given(
    v=st.integers(1, 8), bound=st.floats(1e-3, 1e3), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 2**31)
)
def test_one_hospital_moves_the_sum_by_at_most_v_times_C_even_if_it_lies(
    v: int, bound: float, scale: float, seed: int
) -> None:
    mechanism, asked = mechanism_of(0.3), plan(v, bound, size=500)
    vector = torch.randn(500, generator=torch.Generator().manual_seed(seed)) * scale
    with_it = release(mechanism, asked, ("h0", vector)).mean
    without = release(mechanism, asked).mean
    moved = torch.linalg.vector_norm((with_it - without).double()) * 3 * v
    assert float(moved) <= v * bound * (1 + 1e-3)  # the difference of two single-precision means


@pytest.mark.parametrize("excess", [1e-9, 3e-8])
@pytest.mark.parametrize("bound", [0.3, 0.7, 1.0])
def test_a_lie_that_is_hardly_one_is_brought_below_the_limit_as_well(bound: float, excess: float) -> None:
    """Without noise, and in whole numbers below 2²⁴, which single precision holds: exact figures."""
    mechanism, asked = mechanism_of(0.3, hospitals=1), plan(v=1, bound=bound, size=500)
    most, unit = sensitivity(bound, 1), spacing(bound, 500)
    longer = most / unit * (1 + excess)
    lie = torch.full((500,), math.floor(longer / math.sqrt(500)), dtype=torch.float64)
    lie[: math.ceil((longer**2 - float(lie.square().sum())) / (2 * float(lie[0]) + 1))] += 1
    assert most * (1 + excess / 2) < float(lie.norm()) * unit < most * (1 + excess + 5e-9)
    sent = Contribution("h0", 1, asked.digest, torch.cat([lie, doubles(0)]))
    seen, _ = mechanism.decode(asked, ["h0"], [sent], lambda hidden, _, count: 0 * hidden[:count])
    assert most * (1 - 3e-6) < float(seen.mean.double().norm()) <= most


def test_lying_bits_are_held_to_what_v_intermediaries_can_send() -> None:
    mechanism = mechanism_of(0.0, "quantile")
    seen = release(mechanism, plan(v=2), ("h0", torch.zeros(SIZE), 1e9))
    assert seen.fraction_below == pytest.approx(0.5 + 1 / 6)


def test_every_round_and_every_sum_has_noise_of_its_own() -> None:
    """The same noise on two sums would let their difference out; the same sum redone must get the same."""
    mechanism, one, other = mechanism_of(0.5), torch.full((SIZE,), 1e-3), torch.full((SIZE,), 2e-3)

    def noise(number: int, vector: Tensor, v: int = 2) -> Tensor:
        asked = plan(v)
        sent = [contribution(mechanism, asked, "h0", vector)]
        seen, _ = mechanism.decode(asked, ["h0"], sent, seeded_noise(7, number))
        return (seen.mean * 3 * v - vector) / 0.5

    assert torch.equal(noise(1, one), noise(1, one))
    for drawn in (noise(2, one), noise(1, other), noise(1, one, v=3)):
        correlation = torch.corrcoef(torch.stack([noise(1, one), drawn]))[0, 1]
        assert abs(float(correlation)) < 5 / math.sqrt(SIZE)
        assert float(drawn.std()) == pytest.approx(1, abs=5 / math.sqrt(SIZE))


def test_answering_twice_or_unasked_counts_nothing() -> None:
    mechanism, ones = mechanism_of(0.0), torch.full((SIZE,), 1e-3)
    once = release(mechanism, plan(), ("h0", ones))
    more = release(mechanism, plan(), ("h0", ones), ("h0", ones), ("stranger", ones))
    torch.testing.assert_close(more.mean, once.mean)
    assert more.absent.keys() == once.absent.keys() == {"h1", "h2"}  # who answered twice was there
    assert more.ignored == (
        ("h0", "it answered twice; the first answer counts"),
        ("stranger", "it answered without being asked"),
    )


def test_a_late_answer_or_one_to_another_plan_counts_nothing() -> None:
    mechanism, ones, asked = mechanism_of(0.0), torch.full((SIZE,), 1e-3), plan()
    sent = contribution(mechanism, asked, "h0", ones)
    other = replace(asked, clip_bound=2.0)
    for late, why in (
        (replace(sent, round=9), "it answered round 9 in round 1"),
        (replace(sent, plan=other.digest), "it answered another plan"),
    ):
        seen, _ = mechanism.decode(asked, ["h0"], [late], same_noise(0))
        assert (seen.absent, seen.ignored) == ({"h0": "it did not answer"}, (("h0", why),))
        seen, _ = mechanism.decode(asked, ["h0"], [late, sent], same_noise(0))
        assert seen.absent == {}
        torch.testing.assert_close(seen.mean, ones / 6)


NO_VECTOR = "its update is no vector of numbers in double precision"
NOT_FINITE = "its update is NaN or infinite"


def doubles(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        *((odd, NO_VECTOR) for odd in ("text", True, None, 3.0, [1.0, 2.0], torch.zeros(5).long())),
        (torch.zeros(5, dtype=torch.complex128), NO_VECTOR),
        (doubles(0, 0, 0).view(1, 3), "its update has shape (1, 3) instead of (5,)"),
        (doubles(0, 0, 0, 0), "its update has shape (4,) instead of (5,)"),
        (doubles(0.5, 0, 0, 0, 0), "its update is not of whole numbers"),
        (doubles(0, 0, 0, 0, 0.5), "its update is not of whole numbers"),
        *((doubles(1, odd, 0, 0, 0), NOT_FINITE) for odd in (math.nan, math.inf, -math.inf)),
        (doubles(1, 0, 0, 0, math.nan), NOT_FINITE),
    ],
    ids=str,
)
def test_whatever_a_hospital_sends_it_harms_nobody(numbers: object, why: str) -> None:
    mechanism, asked, good = mechanism_of(0.5, "quantile"), plan(size=4), torch.full((4,), 1e-3)
    sent = contribution(mechanism, asked, "h1", good)
    bad = replace(sent, hospital="h0", numbers=numbers)  # type: ignore[arg-type]
    seen, _ = mechanism.decode(asked, ["h0", "h1"], [bad, "no contribution", sent], same_noise(0))  # type: ignore[list-item]
    alone, _ = mechanism.decode(asked, ["h0", "h1"], [sent], same_noise(0))
    assert torch.equal(seen.mean, alone.mean)
    assert seen.fraction_below == alone.fraction_below
    assert seen.absent == {"h0": why}
    assert seen.ignored == (("'no contribution'", "it is no contribution"),)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("z", [0.0, 0.5])
def test_a_nan_update_counts_as_zero_including_its_bit(bad: float, z: float) -> None:
    mechanism, chance = mechanism_of(z, "quantile"), torch.Generator().manual_seed(1)
    first, lost, last = torch.randn(3, 50, generator=chance)
    lost[7] = bad
    asked = plan(v=3, size=50)
    numbers, norms = mechanism.encode(asked, torch.stack([first, lost, last]))
    others, _ = mechanism.encode(asked, torch.stack([first, last]))
    assert torch.equal(numbers, others)
    assert torch.isfinite(norms).tolist() == [True, False, True]


def test_the_median_bound_is_this_rounds_and_marked_unprotected() -> None:
    updates = torch.diag(torch.tensor([1.0, 2.0, 30.0]))
    bound = MedianClipping().bound_of(updates.double().norm(dim=1))
    assert bound == pytest.approx(2.0)
    mechanism = mechanism_of(0.0, "median")
    asked = replace(plan(v=3, bound=bound, size=3), events=mechanism.events(1, 3, None, False))
    sent = Contribution("h0", 1, asked.digest, mechanism.encode(asked, updates.clone())[0])
    seen, _ = mechanism.decode(asked, ["h0"], [sent], same_noise(0))
    assert seen.events[0].clip_bound == bound
    torch.testing.assert_close(seen.mean * 9, torch.tensor([1.0, 2.0, 2.0]), rtol=1e-5, atol=1e-5)
    assert [(event.released, event.protected) for event in seen.events] == [
        ("model update", True),
        ("median norm", False),
    ]


def test_reading_the_noise_ratio_is_an_unprotected_event() -> None:
    quiet = release(mechanism_of(0.5), plan())
    assert all(event.protected for event in quiet.events)
    loud = release(mechanism_of(0.5), plan(), estimates=True)
    assert [event.released for event in loud.events if not event.protected] == ["noise ratio"]


def test_a_plan_that_came_without_its_events_makes_no_release_without_any() -> None:
    mechanism, asked = mechanism_of(0.5, "quantile"), plan()
    assert asked.events == ()
    seen, unprotected = mechanism.decode(asked, ["h0"], [], same_noise(0), {"somebody else": None})  # type: ignore[dict-item]
    assert [event.released for event in seen.events] == ["model update", "clip quantile"]
    assert all(event.digest for event in seen.events)
    assert unprotected is None


def test_the_same_noise_gives_the_same_digest_and_other_noise_another() -> None:
    mechanism = mechanism_of(0.5)
    digests = [release(mechanism, plan(), seed=seed).events[0].digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_xi_phi_and_cosines_are_the_papers() -> None:
    """Two intermediaries with known updates; the figures are worked out by hand."""
    updates = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]])
    measured = Diagnostics(
        updates.double().norm(dim=1), torch.stack([sketch(u) for u in updates]), torch.tensor(0.5)
    )
    total = updates[0] / 5 * 2 + updates[1]  # clipped at 2
    asked = plan(v=2, bound=2.0, size=3)
    mechanism = mechanism_of(1.0, hospitals=1)
    numbers, norms = mechanism.encode(asked, updates.clone())
    torch.testing.assert_close(norms, measured.norms)
    sent = Contribution("h0", 1, asked.digest, numbers)
    seen, unprotected = mechanism.decode(asked, ["h0"], [sent], same_noise(3), {"h0": measured})
    assert isinstance(unprotected, Unprotected)
    ratio = unprotected.ratio
    noise = (seen.mean - total / 2).norm()
    norm_of_sum = math.sqrt(4 + 4)
    assert ratio.xi == pytest.approx(float(noise) / norm_of_sum, rel=1e-5)
    assert ratio.phi == pytest.approx((5 + 2) / norm_of_sum, rel=1e-5)
    # Both have cosine 2/√8 with the sum.
    assert unprotected.cosine_std == pytest.approx(0.0, abs=1e-6)


def test_without_noise_the_event_says_so() -> None:
    (event,) = release(mechanism_of(0.0, "none"), plan(bound=math.inf)).events
    assert event.protected
    assert event.noise_multiplier == 0
    assert event.clip_bound is None


@given(st.integers(0, 2**32), st.floats(1e-6, 1e6))
def test_normalised_updates_have_norm_c_and_no_more(seed: int, size: float) -> None:
    """Small ones are scaled up, large ones down; leaving one out moves the sum by one C at most."""
    chance = torch.Generator().manual_seed(seed)
    mechanism = replace(mechanism_of(0.5), clipping=FixedClipping(bound=0.3, normalise=True))
    asked, updates = plan(v=3, bound=0.3, size=50), size * torch.randn(3, 50, generator=chance)
    whole, _ = mechanism.opened(asked, mechanism.encode(asked, updates.clone())[0])
    fewer, _ = mechanism.opened(asked, mechanism.encode(asked, updates[:2].clone())[0])
    moved = float((whole - fewer).norm())
    assert moved == pytest.approx(0.3, rel=1e-3)
    assert moved <= sensitivity(0.3, 3)
    direction = torch.nn.functional.cosine_similarity(whole - fewer, updates[2].double(), dim=0)
    assert float(direction) > 0.999
    nothing, _ = mechanism.encode(asked, torch.zeros(3, 50))
    assert float(nothing.abs().max()) == 0
