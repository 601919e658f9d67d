"""What un-noised numbers say of a round: in a simulation, beside the release, and never in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from silodp.intermediary import Ratio
from silodp.local.clip import norm
from silodp.local.sketch import cosines, signs, sketch
from silodp.messages import Diagnostics


@dataclass(frozen=True)
class Unprotected:
    """Un-noised statistics. They may be recorded in a simulation; using them is an `unprotected` event."""

    ratio: Ratio
    cosine_std: float
    losses: dict[str, float]


def measured(total: Tensor, diagnostics: Mapping[str, Diagnostics], noise_norm: float) -> Unprotected:
    """Eq. 2 and the cosines of Fig. 2(b), from un-noised numbers."""
    seen = list(diagnostics.values())
    sketches = torch.cat([one.sketches for one in seen])
    similarity = cosines(sketches, sketch(total, signs(len(total), total.device)))
    norms = torch.cat([one.norms for one in seen])
    ratio = Ratio(noise_norm, float(norms.sum()), float(norm(total)))
    losses = {name: float(one.loss) for name, one in diagnostics.items()}
    return Unprotected(ratio, float(similarity.std(correction=0)), losses)
