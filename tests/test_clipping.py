"""The clip bound: what the guarantee rests on, and where the private quantile goes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from silodp.clipping import ClippingRule, RehearsedClipping
from silodp.local.blocks import BLOCK
from silodp.local.clip import add_clipped, clip_factor, norm, scale_factor


def rule(name: str, **more: float) -> ClippingRule:
    return ClippingRule.of(rule=name, **more)


def clipped(update: Tensor, bound: float) -> Tensor:
    """As a hospital does it: in single precision."""
    return update * clip_factor(norm(update), bound).to(update.dtype)


def exact_norm(update: Tensor) -> float:
    return float(update.double().square().sum().sqrt())


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 3_000),
    v=st.integers(1, 30),
    scale=st.integers(-30, 30),
    bound=st.integers(-6, 6),
    mantissa=st.floats(1, 10),
    spread=st.sampled_from([0.0, 1e-3, 1.0]),
)
def test_a_sum_of_v_clipped_updates_never_exceeds_v_times_C(
    seed: int, size: int, v: int, scale: int, bound: int, mantissa: float, spread: float
) -> None:
    chance = torch.Generator().manual_seed(seed)
    limit = mantissa * 10.0**bound
    common = torch.randn(size, generator=chance)
    lengths = torch.rand(v, 1, generator=chance) + 0.5
    updates = (common + spread * torch.randn(v, size, generator=chance)) * lengths * 10.0**scale
    kept = [clipped(update, limit) for update in updates]
    assert all(exact_norm(update) <= limit for update in kept)
    assert exact_norm(torch.stack(kept).double().sum(0)) <= v * limit


@pytest.mark.parametrize("bound", [0.9, 1.0, 3.3, 25.0])
def test_parallel_updates_reach_the_bound_and_stop_there(bound: float) -> None:
    directions = torch.randn(200, 50, generator=torch.Generator().manual_seed(1)) * 40
    for update in directions:
        kept = exact_norm(clipped(update, bound))
        assert bound * (1 - 2e-6) < kept <= bound


def test_even_a_subnormal_factor_keeps_the_bound() -> None:
    for exponent in range(-10, 0):
        bound = 10.0**exponent
        assert exact_norm(clipped(torch.full((4,), 3e38), bound)) <= bound


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.integers(-20, 20), bound=st.floats(1e-3, 1e3))
def test_clipping_keeps_the_direction(seed: int, scale: int, bound: float) -> None:
    update = torch.randn(300, generator=torch.Generator().manual_seed(seed)) * 10.0**scale
    kept = clipped(update, bound).double()
    cosine = (kept / exact_norm(kept)) @ (update.double() / exact_norm(update))
    assert float(cosine) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("update", "bound"),
    [
        (torch.tensor([3.0, 4.0]), 5.0),
        (torch.tensor([3.0, 4.0]), 5.1),
        (torch.full((10,), 1e30), math.inf),
        (torch.zeros(5), 1e-9),
        (torch.zeros(5), math.inf),
    ],
    ids=str,
)
def test_an_update_within_the_bound_is_left_as_it_is(update: Tensor, bound: float) -> None:
    assert torch.equal(clipped(update, bound), update)


def test_many_updates_are_clipped_each_by_itself() -> None:
    factors = clip_factor(torch.tensor([0.0, 1.0, 2.0, 8.0], dtype=torch.float64), 2.0)
    torch.testing.assert_close(factors, torch.tensor([1, 1, 1, 0.25], dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("bound", [1e-3, 1.0, 1e30, math.inf])
@pytest.mark.parametrize("factor_of", [clip_factor, scale_factor])
def test_what_is_not_finite_counts_as_nothing(factor_of: Callable[..., Tensor], bound: float) -> None:
    assert factor_of(torch.tensor([math.nan, math.inf], dtype=torch.float64), bound).tolist() == [0, 0]


def test_an_update_too_small_to_scale_up_counts_as_nothing() -> None:
    """Its factor is beyond single precision; the hospital's other intermediaries count as ever."""
    tiny, total = torch.full((4,), 1e-42), torch.ones(4)
    add_clipped(total, tiny, scale_factor(norm(tiny), 1.0))
    assert total.tolist() == [1, 1, 1, 1]
    small = torch.full((4,), 1e-29)
    add_clipped(total.zero_(), small, scale_factor(norm(small), 1.0))
    assert float(norm(total)) == pytest.approx(1, abs=1e-5)


def test_several_updates_are_those_of_each() -> None:
    """Below and above the length that is read in blocks: the same norms, and the same sum to the bit."""
    for size in (100, BLOCK + 7):
        updates = torch.randn(3, size, generator=torch.Generator().manual_seed(size))
        updates[1, 5] = math.nan
        norms = norm(updates)
        assert torch.equal(norms.nan_to_num(), torch.stack([norm(one) for one in updates]).nan_to_num())
        together, each = torch.zeros(2, size)
        add_clipped(together, updates, clip_factor(norms, 2.0))
        for one in updates:
            add_clipped(each, one, clip_factor(norm(one), 2.0))
        assert torch.equal(together, each)
        assert float(exact_norm(together)) > 2


def test_the_norm_is_summed_in_double_precision() -> None:
    assert float(norm(torch.full((4,), 3e38))) == pytest.approx(6e38)
    assert float(norm(torch.full((4,), 1e-30))) == pytest.approx(2e-30)


def test_median_bound_is_the_median_up_to_25() -> None:
    assert rule("median").bound_of(torch.tensor([9.0, 1.0, 4.0])) == 4.0
    assert rule("median").bound_of(torch.tensor([30.0, 24.0, 90.0])) == 25.0


def test_all_below_shrinks_and_none_below_grows() -> None:
    quantile = rule("quantile", quantile=0.5, learning_rate=0.2)
    assert quantile.next_bound(1.0, 1.0) == pytest.approx(math.exp(-0.1))
    assert quantile.next_bound(1.0, 0.0) == pytest.approx(math.exp(0.1))
    assert quantile.next_bound(1.0, 0.5) == 1.0


@pytest.mark.parametrize("start", [0.01, 500.0])
@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_the_bound_converges_to_the_quantile_from_both_sides(start: float, quantile: float) -> None:
    norms = torch.linspace(1, 5, 401)
    chosen = rule("quantile", quantile=quantile, learning_rate=0.2)
    bound: float | None = start
    for _ in range(300):
        assert bound is not None
        bound = chosen.next_bound(bound, float((norms <= bound).double().mean()))
    assert bound == pytest.approx(1 + 4 * quantile, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"name": "none"}, math.inf),
        ({"name": "fixed", "bound": 3.0}, 3.0),
        ({"name": "rehearsed", "bound": 3.0}, 3.0),
        ({"name": "median"}, None),
        ({"name": "quantile", "bound": 0.2}, 0.2),
    ],
    ids=str,
)
def test_without_released_bits_the_bound_stays(settings: dict[str, Any], first: float | None) -> None:
    chosen = rule(**settings)
    assert chosen.first_bound() == first
    assert chosen.next_bound(2.5, None) == 2.5
    if not chosen.releases_bits:
        assert chosen.next_bound(2.5, 1.0) == 2.5
        assert chosen.next_bound(None, 1.0) is None


@settings(max_examples=50, deadline=None)
@given(z=st.floats(0.01, 100), share=st.floats(0.001, 0.999))
def test_update_and_bits_together_cost_one_round(z: float, share: float) -> None:
    update, bits = rule("quantile", bit_share=share).multipliers(z)
    assert z**-2 == pytest.approx(update**-2 + bits**-2)
    assert bits**-2 == pytest.approx(share * z**-2)
    sigma_b = bits / 2
    assert update == pytest.approx((z**-2 - (2 * sigma_b) ** -2) ** -0.5)
    assert update > z
    assert rule("quantile").multipliers(0.0) == (0.0, 0.0)  # no noise: nothing to divide


@pytest.mark.parametrize(("z", "hospitals", "numbers"), [(4.86, 6, 1481), (1.83, 20, 1698), (0.5, 3, 9)])
def test_a_rehearsed_bound_makes_the_noise_as_large_as_rehearsed(
    z: float, hospitals: int, numbers: int
) -> None:
    """By simulation: the norm of the noise on the mean of a round."""
    rehearsed = rule("rehearsed", noise=1.5)
    assert isinstance(rehearsed, RehearsedClipping)
    bound = rehearsed.bound_for(z, hospitals, numbers)
    chance = torch.Generator().manual_seed(0)
    norms = (torch.randn(400, numbers, generator=chance) * z * bound / hospitals).norm(dim=1)
    assert float(norms.square().mean().sqrt()) == pytest.approx(
        1.5, rel=6 / math.sqrt(2 * 400 * numbers) + 1e-3
    )
