"""What travels between the server and the hospitals: a plan out, one update a hospital back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RoundPlan:
    """Everything a hospital needs for one round. All of it is public.

    Attributes:
        round: counted from 1.
        parameters: the model θ as a flat vector.
        intermediaries: v, the same for every hospital.
        clip_bound: C; None where it will be the median of this round's norms (the authors' program).
        participants: the hospitals asked this round.
        divisor: DP²-RMSProp's preconditioner; updates are divided by it before they are clipped.
        normalise_steps: FedNova; updates are divided by their local steps before they are clipped.
        measure: also send un-noised norms and sketches, for diagnosis or for rules that ε does not cover.
    """

    round: int
    parameters: Tensor
    intermediaries: int
    clip_bound: float | None
    participants: tuple[str, ...]
    divisor: Tensor | None = None
    normalise_steps: bool = False
    measure: bool = True


@dataclass(frozen=True)
class Measurements:
    """Un-noised statistics of one hospital's intermediaries. No ε covers them."""

    norms: Tensor  # (v,) L2 norms before clipping
    sketches: Tensor  # (v, k) sketches of the updates, for cosines without keeping the updates
    loss: Tensor  # mean training loss


@dataclass(frozen=True)
class HospitalUpdate:
    """What one hospital answers: one vector, whatever v is.

    Attributes:
        clipped_sum: Σ_j Δ̂_ij; the stacked, unclipped (v, d) updates where the plan has no clip bound.
        bits: Σ_j (1[‖Δ_ij‖ ≤ C] − ½), the quantile bits.
        images: how many images were trained on, counted once an epoch.
    """

    hospital: str
    clipped_sum: Tensor
    bits: float
    images: int
    measurements: Measurements | None = None
