"""All chance in a simulation comes from the experiment's seed and a name for what it is used for.

No generator lives from one round to the next, so a resumed run needs no generator state: round 7's
noise is the same number whether or not rounds 1 to 6 were just computed in this process.
"""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose; different purposes give unrelated streams."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(device: torch.device, seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh generator on `device` for one purpose, such as ("noise", round)."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *purpose))
