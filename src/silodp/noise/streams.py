"""Random streams: from a seed and a purpose in simulations, from the operating system in deployments.

No generator lives from one round to the next, so a resumed run needs no generator state: the noise of round 7
is the same whether or not rounds 1 to 6 were computed in this process.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NoiseSource = Callable[[Tensor, str, int], Tensor]
"""`draw(hidden, public, count)` returns (count,) float64 standard normal numbers on the device of `hidden`,
which are the numbers about to be noised; `public` names the release."""


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Derives a 63-bit seed for one purpose; different purposes give unrelated streams."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(device: torch.device, seed: int, *purpose: str | int) -> torch.Generator:
    """Creates a generator on `device` for one purpose, such as ("noise", round)."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *purpose))


def seeded_noise(seed: int, number: int) -> NoiseSource:
    """Noise for simulations, reproducible by whoever knows the seed.

    The key combines the seed, the round and the very numbers that the noise will hide: the same sum repeated
    after a crash gets the same noise, and any other sum gets unrelated noise. On a GPU the noise is drawn
    there, by another generator.
    """

    def draw(hidden: Tensor, public: str, count: int) -> Tensor:
        digest = hashlib.sha256(f"{seed}/noise/{number}/{public}/".encode())
        if hidden.device.type == "cuda":
            digest.update(_fingerprint(hidden.detach()))
            there = torch.Generator(hidden.device).manual_seed(
                int.from_bytes(digest.digest()[:8], "big") >> 1
            )
            return torch.randn(count, dtype=torch.float64, device=hidden.device, generator=there)
        digest.update(hidden.detach().cpu().numpy().data)
        rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest.digest(), "big")))
        return torch.from_numpy(rng.standard_normal(count)).to(hidden.device)

    return draw


def _fingerprint(numbers: Tensor) -> bytes:
    """128-bit hash of a float64 tensor, computed on its device: two weighted sums modulo 2^64.

    Different tensors collide with a probability of about 2^-128; it is not collision-resistant against
    attacks.
    """
    bits = numbers.contiguous().view(torch.int64)
    bits = (bits ^ (bits >> 32)) * -7046029254386353131  # the golden ratio's odd number: low bits become high
    bits ^= bits >> 29
    weights = torch.Generator(numbers.device).manual_seed(0)
    sums = [
        (torch.empty_like(bits).random_(generator=weights).mul_(2).add_(1) * bits).sum() for _ in range(2)
    ]
    return torch.stack(sums).cpu().numpy().tobytes()


def noise_of(seed: int | None, number: int, secret: bytes | None = None) -> NoiseSource:
    """The source of the noise of round `number`: a seed, else a secret, else the operating system."""
    if seed is not None:
        return seeded_noise(seed, number)
    return system_noise if secret is None else keyed_noise(secret, number)


def keyed_noise(secret: bytes, number: int) -> NoiseSource:
    """Noise from a secret of 256 bits that never leaves its owner.

    Guarantee: to everyone without the secret it is as good as the system's, tails and gaps included; and the
    same sum repeated gets the same noise, since two draws on one sum would be two releases.
    """

    def draw(hidden: Tensor, public: str, count: int) -> Tensor:
        digest = hashlib.sha256(secret + f"/{number}/{public}/".encode())
        digest.update(hidden.detach().cpu().numpy().data)
        return _closed_normals(count, _streams(digest.digest())).to(hidden.device)

    return draw


def system_noise(hidden: Tensor, public: str, count: int) -> Tensor:
    """Noise for deployments, from the operating system's entropy: nobody can draw it again.

    The system gives 256 bits, which AES-256 in counter mode expands, as operating systems do themselves (NIST
    SP 800-90A). Each number is the sum of four normal numbers, halved, which closes the gaps that a single
    one has in floating point (Holohan and Braghin 2021; Opacus' secure mode does the same).

    Guarantee: its tails are unbounded. A release that a unit moves by μ standard deviations has the ε that is
    stated for it only if the noise reaches beyond μ, which is 30 and more for a hospital of many
    intermediaries.
    """
    return _closed_normals(count, _streams(os.urandom(32))).to(hidden.device)


Entropy = Callable[[NDArray[np.uint64]], None]
"""`entropy(words)` fills words of 64 random bits."""


def _streams(key: bytes) -> Callable[[int], Entropy]:
    """Unrelated streams under one key of 256 bits, by number: AES in counter mode, 2^64 blocks for each."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    def stream(number: int) -> Entropy:
        cipher = Cipher(algorithms.AES(key), modes.CTR((number << 64).to_bytes(16, "big"))).encryptor()

        def fill(words: NDArray[np.uint64]) -> None:
            words.fill(0)
            words[:] = np.frombuffer(cipher.update(words.view(np.uint8).data), dtype=np.uint64)

        return fill

    return stream


def _closed_normals(count: int, streams: Callable[[int], Entropy]) -> Tensor:
    """(count,) float64, each the half sum of four normal numbers; independent of the number of threads."""
    total, threads = torch.zeros(count, dtype=torch.float64), torch.get_num_threads()
    parts = torch.split(total, _CHUNK)

    def fill(first: int) -> None:
        words, numbers = np.empty(_CHUNK // 2, dtype=np.uint64), np.empty((4, _CHUNK // 2))
        for number in range(first, len(parts), threads):
            entropy = streams(number)
            for _ in range(4):
                _add_normal(parts[number], entropy, words, numbers)
            parts[number].div_(2)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(threads)))
    return total


_CHUNK = 2**16
"""Numbers at a time. What is computed on the way has its place, and stays in the cache."""


def _add_normal(
    total: Tensor, entropy: Entropy, words: NDArray[np.uint64], numbers: NDArray[np.float64]
) -> None:
    """Adds standard normal numbers to `total`, in place, by the Box–Muller transform.

    Args:
        total: (n,) in double precision.
        words: work memory of at least n/2 words.
        numbers: work memory of at least (4, n/2) numbers.
    """
    pairs = (len(total) + 1) // 2
    words, (radius, angle, cosine, _) = words[:pairs], numbers[:, :pairs]
    _exponential(radius, entropy, words, numbers[3, :pairs])
    radius *= 2
    np.sqrt(radius, out=radius)
    entropy(words)
    _fraction(words, angle)
    angle *= 2 * math.pi
    length, turn = torch.from_numpy(radius), torch.from_numpy(angle)
    total[:pairs].addcmul_(torch.cos(turn, out=torch.from_numpy(cosine)), length)
    rest = len(total) - pairs
    total[pairs:].addcmul_(turn.sin_()[:rest], length[:rest])


def _exponential(
    found: NDArray[np.float64],
    entropy: Entropy,
    words: NDArray[np.uint64],
    work: NDArray[np.float64],
) -> None:
    """Fills `found` with −ln U of uniform U = 2^−e·m, with unbounded e and 53 bits of m, however small U is.

    A fixed number of bits for U would bound the tail: 53 bits bound a normal number by 8.6. The last 11 bits
    of a word count e; where they are all zero, another word continues the count.

    Args:
        found: (n,), overwritten.
        words: work memory of n words.
        work: work memory of n numbers.
    """
    undecided = np.arange(len(found))
    for before in range(_LONGEST):
        entropy(words)
        _fraction(words, work)
        np.log1p(work, out=work)
        words &= np.uint64(_COUNTERS - 1)
        each = _HALVINGS.take(words.view(np.int64))
        each -= work  # U = 2^−e·(1 + fraction)/2
        if before:
            found[undecided] = each + before * _HALVINGS[0]
        else:
            found[:] = each
        zeros = np.flatnonzero(words == 0)
        if not len(zeros):
            return
        undecided, words, work = undecided[zeros], words[: len(zeros)], work[: len(zeros)]
    raise RuntimeError("the source of random bits gives zeros only")


_COUNTERS = 2**11
_HALVINGS = math.log(2) * np.array([11, *(12 - counted.bit_length() for counted in range(1, _COUNTERS))])
"""(e + 1)·ln 2 by the 11 bits that count e; for 11 zeros, what they add to a count that continues."""

_LONGEST = 4096
"""Words in a row whose 11 bits are zero, at 250 standard deviations: only a broken source gives so many."""


def _fraction(words: NDArray[np.uint64], into: NDArray[np.float64]) -> None:
    """The first 53 bits of each word as a number from 0 to below 1."""
    np.copyto(into, (words >> np.uint64(11)).view(np.int64))  # as signed numbers: ten times as fast
    into *= 2.0**-53


def secret_number(secret: str, *purpose: str | int) -> int:
    """A whole number below 2^`SECRET_BITS` for one purpose: SHAKE-256 of the secret and the purpose.

    It depends on all bits of the secret, unlike a generator with a seed of 32 or 64 bits: without the secret
    one can only guess it.
    """
    text = "/".join(map(str, (secret, *purpose)))
    return int.from_bytes(hashlib.shake_256(text.encode()).digest(SECRET_BITS // 8), "big")


SECRET_BITS = 1088
"""Enough for an exact draw with any probability that a double can hold (a multiple of 2^−1074)."""
