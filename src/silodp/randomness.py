"""All chance in a simulation comes from the experiment's seed and a name for what it is used for.

No generator lives from one round to the next, so a resumed run needs no generator state: round 7's
noise is the same number whether or not rounds 1 to 6 were just computed in this process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

NoiseSource = Callable[[Tensor, str, int], Tensor]
"""`draw(hidden, public, count)`: standard normal numbers on `hidden`'s device. `hidden` are the numbers
about to be noised, `public` names the release."""


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
        return torch.from_numpy(chance.standard_normal(count, dtype=np.float32)).to(hidden.device)

    return draw
