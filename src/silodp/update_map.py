"""The scale in which updates travel: one public map, the same for every hospital.

Which parameters travel is fixed beforehand: the flat vector holds the trainable ones (`model.trainable`), and
nothing else is clipped, noised or sent. A map may rescale that vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class UpdateMap:
    """Rescales updates before clipping, at the hospitals, and the released mean afterwards, at the server.

    Guarantee: it depends on releases and public numbers only, so clipping its output bounds what anyone can
    contribute, and undoing it afterwards is post-processing.

    Attributes:
        per_step: FedNova (Wang et al. 2020): an update is divided by its local normaliser a_ij, and the mean
            multiplied by the mean normaliser over all intermediaries.
        divisor: (d,) DP²-RMSProp's preconditioner (Li et al. 2023): updates are divided by it. The mean
            stays as it is: the server steps in the preconditioned space.
    """

    per_step: bool = False
    divisor: Tensor | None = None

    @property
    def phase(self) -> str:
        """The scale's name: updates in another scale have other norms, so each has its own clip bound."""
        return "plain" if self.divisor is None else "preconditioned"

    def encode(self, update: Tensor, reach: float) -> Tensor:
        """At a hospital: rescales a (d,) update, or (k, d) several, in place, before clipping.

        Args:
            update: float32; changed in place and returned.
            reach: the local normaliser a_ij of the intermediary's steps (FedNova).
        """
        if self.per_step:
            update /= reach
        if self.divisor is not None:
            update /= self.divisor
        return update

    def decode(self, mean: Tensor, noise_std: float, mean_reach: Callable[[], float]) -> tuple[Tensor, float]:
        """At the server: the released mean in the model's scale, and the standard deviation of its noise.

        Args:
            mean: (d,) float32.
            noise_std: of the noise in each coordinate of `mean`.
            mean_reach: computes the mean normaliser over all intermediaries; called only if needed.
        """
        if not self.per_step:
            return mean, noise_std
        factor = mean_reach()
        return mean * factor, noise_std * factor
