"""The lattice: what is released lies on the same points whatever it hides."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from silodp.clipping import FixedClipping
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, Release, RoundPlan
from silodp.noise.lattice import FINENESS, sensitivity, spacing, to_lattice
from silodp.noise.streams import NoiseSource
from silodp.participation import Everyone

bounds = st.floats(-6, 6).map(lambda x: 10.0**x)


@settings(max_examples=50, deadline=None)
@given(bound=bounds, size=st.integers(1, 10**8))
def test_points_are_a_power_of_two_apart_and_rounding_moves_little(bound: float, size: int) -> None:
    distance = spacing(bound, size)
    assert math.frexp(distance)[0] == 0.5
    points = distance * math.sqrt(size)
    assert points * (1 - 1e-12) <= FINENESS * bound < 2 * points * (1 + 1e-12)


@settings(max_examples=50, deadline=None)
@given(bound=bounds, size=st.integers(1, 300), seed=st.integers(0, 2**31))
def test_rounding_goes_to_the_nearest_point(bound: float, size: int, seed: int) -> None:
    vector = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * bound
    distance = spacing(bound, size)
    whole = to_lattice(vector, distance)
    assert torch.equal(whole, whole.round())
    assert float((whole * distance - vector.double()).abs().max()) <= distance / 2


@settings(max_examples=60, deadline=None)
@given(bound=bounds, v=st.integers(1, 40), size=st.integers(1, 200), seed=st.integers(0, 2**31))
def test_one_intermediary_moves_the_sum_by_no_more_than_the_sensitivity(
    bound: float, v: int, size: int, seed: int
) -> None:
    """A hospital adds in single precision, with and without one of its updates of norm C."""
    chance = torch.Generator().manual_seed(seed)
    updates = torch.randn(v, size, generator=chance)
    updates *= (bound * (1 - 1e-6) / updates.double().norm(dim=1))[:, None].float()
    distance = spacing(bound, size)
    whole, without = torch.zeros(size), torch.zeros(size)
    for number, update in enumerate(updates):
        whole += update
        if number:
            without += update
    moved = (to_lattice(whole, distance) - to_lattice(without, distance)).norm() * distance
    assert float(moved) <= sensitivity(bound, v)


def test_rounding_in_single_precision_is_counted() -> None:
    """Thirty-nine crumbs of a bit more than half a unit in the last place: on top of a 1 each of them is
    rounded up to a whole unit, alone they are exact. So the 1 moves the sum by more than 1."""
    crumb = torch.tensor([1.01 * 2.0**-24])
    whole, without = torch.ones(1), torch.zeros(1)
    for _ in range(39):
        whole, without = whole + crumb, without + crumb
    moved = float(whole.double() - without.double())
    assert 1 + 2 * FINENESS < moved <= sensitivity(1.0, 40)


def test_the_sensitivity_is_hardly_more_than_the_clip_bound() -> None:
    assert 1.0 < sensitivity(1.0, 1) < 1 + 2e-6
    assert sensitivity(1.0, 15) < 1 + 3e-5


MECHANISM = Mechanism(0.7, FixedClipping(), Everyone(), 4)


def normal(seed: int) -> NoiseSource:
    def draw(hidden: Tensor, public: str, count: int) -> Tensor:
        return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    return draw


def released(asked: RoundPlan, updates: dict[str, Tensor], seed: int) -> Release:
    """Each hospital has one intermediary."""
    answers = [
        Contribution(name, 1, asked.digest, MECHANISM.encode(asked, [update.clone()])[0])
        for name, update in updates.items()
    ]
    return MECHANISM.decode(asked, ("h0", "h1", "h2"), answers, normal(seed))[0]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.0, 1e-7, 1e-3, 1.0]))
def test_every_release_lies_on_the_lattice_whatever_it_hides(seed: int, scale: float) -> None:
    """Hidden numbers of any size, on no lattice themselves. The denominator 8 loses nothing in binary."""
    size = 400
    hidden = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hidden *= scale / hidden.norm()
    asked = RoundPlan(1, torch.zeros(size, dtype=torch.float64), 2, 1.0)
    mean = released(asked, {"h0": hidden}, seed).mean
    points = mean * 8 / spacing(1.0, size)
    assert torch.equal(points, points.round())
    assert points.unique().numel() > size // 2  # a lattice so fine that it costs nothing


def test_the_sum_does_not_depend_on_the_order_of_the_hospitals() -> None:
    """Floating-point addition would; whole numbers do not."""
    size = 1000
    chance = torch.Generator().manual_seed(3)
    updates = {name: torch.randn(size, generator=chance) for name in ("h0", "h1", "h2")}
    asked = RoundPlan(1, torch.zeros(size), 2, 1.0)
    one = released(asked, updates, 1)
    other = released(asked, dict(reversed(updates.items())), 1)
    assert torch.equal(one.mean, other.mean)
    assert one.events == other.events
