"""Chance by name: the same purpose gives the same numbers, another purpose unrelated ones."""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from silodp.randomness import derive_seed, generator, seeded_noise, system_noise

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
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / math.sqrt(pair.shape[1])


SOURCES = {"seed": seeded_noise(3, 7), "system": system_noise}


@pytest.mark.parametrize("name", SOURCES)
def test_noise_fits_the_normal_distribution(name: str) -> None:
    """Each test raises a false alarm once in a million runs where the noise is new every time."""
    drawn = SOURCES[name](torch.zeros(1), "x", 400_001).numpy()
    assert drawn.dtype == np.float64
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    # The tails, where sampling errors hide: counts beyond 3 and 4 standard deviations.
    for limit in (3.0, 4.0):
        beyond = int((abs(drawn) > limit).sum())
        assert stats.binomtest(beyond, len(drawn), 2 * stats.norm.sf(limit)).pvalue > 1e-6
    # Neighbours, and the two numbers that one radius gives, are unrelated; so are their squares.
    for shift in (1, len(drawn) // 2, 2**17):
        for power in (1, 2):
            first, second = drawn[:-shift] ** power, drawn[shift:] ** power
            assert stats.pearsonr(first, second).pvalue > 1e-6


def test_noise_from_the_system_is_never_the_same_twice() -> None:
    hidden = torch.zeros(3)
    first, second = (system_noise(hidden, "x", 1000) for _ in range(2))
    assert not torch.equal(first, second)
    assert len(set(first.tolist()) | set(second.tolist())) == 2000


def test_noise_from_the_system_has_no_other_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the operating system's entropy held fast it stands still, whatever the seeds are."""
    monkeypatch.setattr(os, "urandom", lambda size: bytes(range(256)) * (size // 256) + bytes(size % 256))
    torch.manual_seed(1)
    first = system_noise(torch.zeros(3), "x", 1000)
    torch.manual_seed(2)
    np.random.seed(2)
    assert torch.equal(first, system_noise(torch.ones(3), "y", 1000))


@pytest.mark.parametrize("count", [1, 2, 3, 2**18 - 1, 2**18, 2**18 + 1])
def test_any_number_of_numbers_can_be_drawn(count: int) -> None:
    for source in SOURCES.values():
        assert source(torch.zeros(1), "x", count).shape == (count,)


def test_the_worst_random_bits_still_give_a_finite_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr(os, "urandom", lambda size, byte=byte: byte * size)
        assert bool(torch.isfinite(system_noise(torch.zeros(1), "x", 10)).all())
