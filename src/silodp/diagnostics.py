"""Un-noised statistics of a round, for simulations: recorded beside the release, never part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from silodp.intermediary import Ratio
from silodp.local.clip import norm
from silodp.local.sketch import cosines, sketch
from silodp.messages import Diagnostics


@dataclass(frozen=True)
class Unprotected:
    """Un-noised statistics of a round. A simulation may record them; using them is an `unprotected` event.

    Attributes:
        ratio: ξ, φ and λ of Eq. 2.
        cosine_std: standard deviation over intermediaries of cos(Δ_ij, sum), as in Fig. 2(b).
        losses: mean training loss by hospital.
    """

    ratio: Ratio
    cosine_std: float
    losses: dict[str, float]


def measured(total: Tensor, diagnostics: Mapping[str, Diagnostics], noise_norm: float) -> Unprotected:
    """Computes Eq. 2 and the cosines of Fig. 2(b) from un-noised numbers.

    The ratio is exact. The cosines are estimates from sketches, so that no update need be kept until the sum
    is known.

    Args:
        total: (d,) float32, the un-noised sum of clipped updates ΣΔ̂_ij over all hospitals that count.
        diagnostics: by hospital, of the same hospitals; the norms are those before clipping.
        noise_norm: ‖ζ‖, the norm of the very noise that was added to the mean.
    """
    direction = sketch(total)
    similarity = torch.cat([cosines(one.sketches, direction) for one in diagnostics.values()])
    norms = torch.cat([one.norms for one in diagnostics.values()])
    ratio = Ratio(noise_norm, float(norms.sum()), float(norm(total)))
    losses = {name: float(one.loss) for name, one in diagnostics.items()}
    return Unprotected(ratio, float(similarity.std(correction=0)), losses)
