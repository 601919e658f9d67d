"""Where chance comes from: a seed and a purpose in simulations, the operating system in deployments.

No generator lives from one round to the next, so a resumed run needs no generator state: round 7's
noise is the same number whether or not rounds 1 to 6 were just computed in this process.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NoiseSource = Callable[[Tensor, str, int], Tensor]
"""`draw(hidden, public, count)`: standard normal numbers in double precision on `hidden`'s device. `hidden`
are the numbers about to be noised, `public` names the release."""


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose; different purposes give unrelated streams."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(device: torch.device, seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh generator on `device` for one purpose, such as ("noise", round)."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *purpose))


def seeded_noise(seed: int, number: int) -> NoiseSource:
    """Noise for simulations, reproducible by whoever knows the seed.

    The key (128 bits) is made of the seed, the round and the very numbers that the noise will hide: the
    same sum redone after a crash gets the same noise, and any other sum gets unrelated noise.
    """

    def draw(hidden: Tensor, public: str, count: int) -> Tensor:
        digest = hashlib.sha256(f"{seed}/noise/{number}/{public}/".encode())
        digest.update(hidden.detach().cpu().numpy().tobytes())
        chance = np.random.Generator(np.random.PCG64(int.from_bytes(digest.digest(), "big")))
        return torch.from_numpy(chance.standard_normal(count)).to(hidden.device)

    return draw


def noise_of(seed: int | None, number: int) -> NoiseSource:
    """A round's noise: from the seed, or without one from the operating system."""
    return system_noise if seed is None else seeded_noise(seed, number)


def keyed_noise(secret: bytes, number: int) -> NoiseSource:
    """A hospital's share of a round's noise, from a secret of 256 bits that never leaves it.

    Guarantee: as good as the system's to everyone without the secret, tails and gaps included; and the same
    sum redone gets the same noise, for two shares on one sum would be two releases.
    """

    def draw(hidden: Tensor, public: str, count: int) -> Tensor:
        digest = hashlib.sha256(secret + f"/{number}/{public}/".encode())
        digest.update(hidden.detach().cpu().numpy().tobytes())
        key, calls = digest.digest(), itertools.count()

        def entropy(size: int) -> bytes:
            return hashlib.shake_256(key + next(calls).to_bytes(8, "big")).digest(size)

        return _closed_normals(count, entropy).to(hidden.device)

    return draw


def system_noise(hidden: Tensor, public: str, count: int) -> Tensor:
    """Noise for deployments, from the operating system's entropy: nobody can draw it again.

    Each number is the sum of four normal numbers, halved, which closes the gaps that a single one computed
    in floating point has (Holohan and Braghin 2021; Opacus' secure mode does the same).

    Guarantee: its tails have no end. A release whose unit moves it by μ standard deviations is what its ε
    says only if noise reaches beyond μ; for a hospital of many intermediaries μ is 30 and more in one round.
    """
    return _closed_normals(count, os.urandom).to(hidden.device)


def _closed_normals(count: int, entropy: Callable[[int], bytes]) -> Tensor:
    total = torch.zeros(count, dtype=torch.float64)
    for start in range(0, count, _CHUNK):
        part = total[start : start + _CHUNK]
        for _ in range(4):
            part += _normal(len(part), entropy)
    return total.div_(2)


_CHUNK = 2**18


def _normal(count: int, entropy: Callable[[int], bytes]) -> Tensor:
    """Standard normal numbers by Box and Muller; `entropy(n)` gives n random bytes."""
    pairs = (count + 1) // 2
    radius = _exponential(pairs, entropy).mul_(2).sqrt_()
    angle = torch.from_numpy(_bits53(pairs, entropy).astype(np.float64)).mul_(2 * math.pi * 2.0**-53)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


def _exponential(count: int, entropy: Callable[[int], bytes]) -> Tensor:
    """−ln U of uniform numbers U = 2^−e·m, with e unbounded and 53 bits of m, however small U is.

    A fixed number of bits for U itself would end the tail: 53 bits end a normal number at 8.6.
    """
    exponent = np.zeros(count)
    undecided = np.arange(count)
    for _ in range(_LONGEST):
        words = _bits53(len(undecided), entropy)
        exponent[undecided] += 53 - np.frexp(words.astype(np.float64))[1]  # leading zeros; all 53 for zero
        undecided = undecided[words == 0]
        if not len(undecided):
            break
    else:
        raise RuntimeError("the source of random bits gives zeros only")
    mantissa = _bits53(count, entropy).astype(np.float64) * 2.0**-53  # U = 2^−e·(1 + mantissa)/2
    return torch.from_numpy((exponent + 1) * math.log(2) - np.log1p(mantissa))


_LONGEST = 4096
"""Words of 53 zeros in a row, at 548 standard deviations: no chance gives so many; the source is broken."""


def _bits53(count: int, entropy: Callable[[int], bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(entropy(8 * count), dtype=np.uint64) >> np.uint64(11)


def secret_number(secret: str, *purpose: str | int) -> int:
    """A whole number below 2^`SECRET_BITS` for one purpose, by SHAKE-256 of the secret and the purpose.

    All bits of the secret count, unlike in a generator's 32- or 64-bit seed: whoever does not know the secret
    can do no better than guess it.
    """
    text = "/".join(map(str, (secret, *purpose)))
    return int.from_bytes(hashlib.shake_256(text.encode()).digest(SECRET_BITS // 8), "big")


SECRET_BITS = 1088
"""Enough for an exact draw with any chance that a double can be (a multiple of 2^−1074)."""
