"""Chance by name: the same purpose gives the same numbers, another purpose unrelated ones."""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from silodp.noise.streams import (
    Entropy,
    _closed_normals,
    _exponential,
    _streams,
    derive_seed,
    generator,
    seeded_noise,
    system_noise,
)

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
    for shift in (1, len(drawn) // 2, 2**15, 2**16):
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
    monkeypatch.setattr(os, "urandom", lambda size: (bytes(range(1, 256)) * (1 + size // 255))[:size])
    torch.manual_seed(1)
    first = system_noise(torch.zeros(3), "x", 1000)
    torch.manual_seed(2)
    np.random.seed(2)
    assert torch.equal(first, system_noise(torch.ones(3), "y", 1000))


@pytest.mark.parametrize("count", [1, 2, 3, 2**16 - 1, 2**16, 2**16 + 1])
def test_any_number_of_numbers_can_be_drawn(count: int) -> None:
    for source in SOURCES.values():
        assert source(torch.zeros(1), "x", count).shape == (count,)


def test_the_worst_random_bits_give_a_finite_number_or_an_error() -> None:
    assert bool(torch.isfinite(_closed_normals(10, lambda _: lambda words: words.fill(2**64 - 1))).all())
    with pytest.raises(RuntimeError, match="zeros only"):
        _closed_normals(10, lambda _: lambda words: words.fill(0))


def test_the_systems_entropy_is_stretched_by_aes() -> None:
    """AES-256 of a block of zeros under a key of zeros, as NIST's known answers have it, and of 2^64."""
    nist = "dc95c078a2408989ad48a21492842087"
    streams = _streams(bytes(32))

    def drawn(entropy: Entropy, words: int) -> bytes:
        into = np.ones(words, dtype=np.uint64)  # what was there before does not count
        entropy(into)
        return into.tobytes()

    assert drawn(streams(0), 2).hex() == nist
    third = streams(3)
    assert drawn(third, 1) + drawn(third, 5) == drawn(streams(3), 6)
    assert len({drawn(streams(number), 2) for number in range(100)}) == 100


def test_noise_is_the_same_for_any_number_of_threads() -> None:
    """And every part of it has a stream of its own."""
    key, drawn = bytes(range(32)), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        drawn.append(_closed_normals(2**17 + 5, _streams(key)))
    torch.set_num_threads(1)
    assert torch.equal(*drawn)
    assert len(torch.unique(drawn[0])) == len(drawn[0])


def after_zeros(zeros: int) -> Entropy:
    """Random words; those of its first calls are zeros."""
    calls = iter([True] * zeros)

    def fill(words: NDArray[np.uint64]) -> None:
        words[:] = 0 if next(calls, False) else np.frombuffer(os.urandom(words.nbytes), dtype=np.uint64)

    return fill


@pytest.mark.parametrize("zeros", [0, 1, 2, 64, 2000])
def test_tails_are_unbounded(zeros: int) -> None:
    """Given that the first 11·k bits are zeros, −ln U is 11·k·ln 2 and an exponential number: at k = 64 a
    normal number is beyond 31 standard deviations, as far as 15 intermediaries at z = ½ move a round."""
    drawn, work, words = np.empty(20_000), np.empty(20_000), np.empty(20_000, dtype=np.uint64)
    _exponential(drawn, after_zeros(zeros), words, work)
    beyond = drawn - zeros * 11 * math.log(2)
    assert stats.kstest(beyond, "expon").pvalue > 1e-6
    # Fine however far out: no two are the same, as they would be if U itself had 53 bits.
    assert len(np.unique(beyond)) > 19_990


def test_noise_from_the_system_reaches_as_far_as_a_unit_can_move_it() -> None:
    """Four sums of at most 8.57 each would end at 17.1, and whoever is moved by 30 would be seen for sure."""
    calls = iter(range(10**9))

    def fill(words: NDArray[np.uint64]) -> None:
        # Of the words for a number's four radii, the first hundred are zeros.
        zero = next(calls) % 102 < 100
        words[:] = 0 if zero else np.frombuffer(os.urandom(words.nbytes), dtype=np.uint64)

    assert float(_closed_normals(2000, lambda _: fill).abs().max()) > 30
