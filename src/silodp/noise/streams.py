"""Where chance comes from: a seed and a purpose in simulations, the operating system in deployments.

No generator lives from one round to the next, so a resumed run needs no generator state: round 7's
noise is the same number whether or not rounds 1 to 6 were just computed in this process.
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
    same sum redone after a crash gets the same noise, and any other sum gets unrelated noise. On a GPU it is
    drawn there, by another generator.
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
        chance = np.random.Generator(np.random.PCG64(int.from_bytes(digest.digest(), "big")))
        return torch.from_numpy(chance.standard_normal(count)).to(hidden.device)

    return draw


def _fingerprint(numbers: Tensor) -> bytes:
    """128 bits of a tensor in double precision, computed where it lies: two weighted sums, mod 2^64.

    Two tensors that differ get the same with a chance of about 2^-128, not against someone who chooses them.
    """
    bits = numbers.contiguous().view(torch.int64)
    bits = (bits ^ (bits >> 32)) * -7046029254386353131  # the golden ratio's odd number: low bits become high
    bits ^= bits >> 29
    weights = torch.Generator(numbers.device).manual_seed(0)
    sums = [
        (torch.empty_like(bits).random_(generator=weights).mul_(2).add_(1) * bits).sum() for _ in range(2)
    ]
    return torch.stack(sums).cpu().numpy().tobytes()


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
        digest.update(hidden.detach().cpu().numpy().data)
        return _closed_normals(count, _streams(digest.digest())).to(hidden.device)

    return draw


def system_noise(hidden: Tensor, public: str, count: int) -> Tensor:
    """Noise for deployments, from the operating system's entropy: nobody can draw it again.

    The system gives 256 bits, and AES-256 in counter mode makes of them as many as are needed, as systems do
    themselves (NIST SP 800-90A). Each number is the sum of four normal numbers, halved, which
    closes the gaps that a single one computed in floating point has (Holohan and Braghin 2021; Opacus' secure
    mode does the same).

    Guarantee: its tails have no end. A release whose unit moves it by μ standard deviations is what its ε
    says only if noise reaches beyond μ; for a hospital of many intermediaries μ is 30 and more in one round.
    """
    return _closed_normals(count, _streams(os.urandom(32))).to(hidden.device)


Entropy = Callable[[int], bytes]
"""`entropy(n)`: n random bytes."""


def _streams(key: bytes) -> Callable[[int], Entropy]:
    """Unrelated streams under one key of 256 bits, by number: AES in counter mode, 2^64 blocks for each."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    def stream(number: int) -> Entropy:
        cipher = Cipher(algorithms.AES(key), modes.CTR((number << 64).to_bytes(16, "big"))).encryptor()
        return lambda size: cipher.update(bytes(size))

    return stream


def _closed_normals(count: int, streams: Callable[[int], Entropy]) -> Tensor:
    """(count,) sums of four, halved, by as many threads as PyTorch uses; the same for any number of them."""
    total = torch.zeros(count, dtype=torch.float64)
    parts = torch.split(total, _CHUNK)

    def fill(number: int) -> None:
        entropy = streams(number)
        for _ in range(4):
            parts[number].add_(_normal(len(parts[number]), entropy))
        parts[number].div_(2)

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(fill, range(len(parts))))
    return total


_CHUNK = 2**16
"""Numbers at a time: what is computed on the way stays in the cache."""


def _normal(count: int, entropy: Entropy) -> Tensor:
    """Standard normal numbers by Box and Muller."""
    pairs = (count + 1) // 2
    radius = _exponential(pairs, entropy).mul_(2).sqrt_()
    angle = torch.from_numpy(_bits53(pairs, entropy).astype(np.float64)).mul_(2 * math.pi * 2.0**-53)
    return torch.cat([torch.cos(angle).mul_(radius), angle.sin_().mul_(radius)])[:count]


def _exponential(count: int, entropy: Entropy) -> Tensor:
    """−ln U of uniform numbers U = 2^−e·m, with e unbounded and 53 bits of m, however small U is.

    A fixed number of bits for U itself would end the tail: 53 bits end a normal number at 8.6.
    """
    words = _bits53(count, entropy)
    zeros = 53 - np.frexp(words.astype(np.float64))[1]  # leading ones of 53; all 53 for zero
    undecided = np.flatnonzero(words == 0)
    for _ in range(_LONGEST):
        if not len(undecided):
            break
        words = _bits53(len(undecided), entropy)
        zeros[undecided] += 53 - np.frexp(words.astype(np.float64))[1]
        undecided = undecided[words == 0]
    else:
        raise RuntimeError("the source of random bits gives zeros only")
    mantissa = torch.from_numpy(_bits53(count, entropy).astype(np.float64)).mul_(2.0**-53)
    # U = 2^−zeros·(1 + mantissa)/2
    return mantissa.log1p_().neg_().add_(torch.from_numpy(zeros), alpha=math.log(2)).add_(math.log(2))


_LONGEST = 4096
"""Words of 53 zeros in a row, at 548 standard deviations: no chance gives so many; the source is broken."""


def _bits53(count: int, entropy: Entropy) -> NDArray[np.uint64]:
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
