"""Chance by name: the same purpose gives the same numbers, another purpose unrelated ones."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from silodp.randomness import derive_seed, generator

CPU = torch.device("cpu")
words = st.one_of(st.integers(0, 10**6), st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True))
purposes = st.tuples(st.integers(0, 2**70), st.lists(words, max_size=4).map(tuple))


def numbers(seed: int, *purpose: str | int) -> torch.Tensor:
    return torch.randn(20_000, generator=generator(CPU, seed, *purpose))


@settings(max_examples=50, deadline=None)
@given(first=purposes, second=purposes)
def test_seeds_fit_and_differ_by_purpose(
    first: tuple[int, tuple[str | int, ...]], second: tuple[int, tuple[str | int, ...]]
) -> None:
    seeds = [derive_seed(seed, *purpose) for seed, purpose in (first, second)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert (seeds[0] == seeds[1]) == (first == second)


def test_seeds_are_the_same_in_every_process_and_version() -> None:
    """Else a resumed run would draw other noise. `printf 0/noise/7 | sha256sum`: first 8 bytes, halved."""
    assert derive_seed(0, "noise", 7) == 4578217800377160657


def test_same_purpose_same_numbers_whatever_came_before() -> None:
    first = numbers(3, "noise", 7)
    numbers(3, "noise", 6)
    torch.manual_seed(99)
    assert torch.equal(numbers(3, "noise", 7), first)


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    numbers(3, "noise", 7)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("other", [(3, "noise", 8), (4, "noise", 7), (3, "split", 7), (3, "noise", 7, 0)])
def test_other_purposes_are_uncorrelated(other: tuple[int, str, int]) -> None:
    pair = torch.stack([numbers(3, "noise", 7), numbers(*other)])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 4 / math.sqrt(pair.shape[1])
