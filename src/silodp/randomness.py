"""Where chance comes from: a seed and a purpose in simulations, the operating system in deployments.

No generator lives from one round to the next, so a resumed run needs no generator state: round 7's
noise is the same number whether or not rounds 1 to 6 were just computed in this process.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable

import numpy as np
import torch
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


def system_noise(hidden: Tensor, public: str, count: int) -> Tensor:
    """Noise for deployments, from the operating system's entropy: nobody can draw it again.

    Each number is the sum of four normal numbers, halved, which closes the gaps that a single one computed
    in floating point has (Holohan and Braghin 2021; Opacus' secure mode does the same).
    """
    total = torch.zeros(count, dtype=torch.float64)
    for start in range(0, count, _CHUNK):
        part = total[start : start + _CHUNK]
        for _ in range(4):
            part += _normal_from_system(len(part))
    return total.div_(2).to(hidden.device)


_CHUNK = 2**18


def _normal_from_system(count: int) -> Tensor:
    """Standard normal numbers by Box and Muller, from 53 random bits for each radius and angle."""
    pairs = (count + 1) // 2
    words = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64) >> np.uint64(11)
    uniform = torch.from_numpy(words.astype(np.float64)).mul_(2.0**-53)
    radius = uniform[:pairs].add(2.0**-53).log_().mul_(-2).sqrt_()  # of a number above 0 and at most 1
    angle = uniform[pairs:].mul(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]
