"""What of an update travels, and in which scale: one public map, the same for every hospital.

Which parameters there are to travel is fixed before: the flat vector holds what trains (`model.trainable`),
and nothing else is clipped, noised or sent. Of that vector a map may send another scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class UpdateMap:
    """What hospitals do to their updates before they clip, and the server to the released mean.

    Guarantee: it depends on releases and public numbers only, so clipping what it gives bounds what anyone
    can contribute, and undoing it afterwards is post-processing.

    Attributes:
        per_step: FedNova (Wang et al. 2020): an update is divided by how far its local steps reach, and the
            mean multiplied by the mean of that over all intermediaries.
        divisor: (d,) DP²-RMSProp's preconditioner (Li et al. 2023): updates are divided by it. The mean
            stays as it is: the server steps in the preconditioned space.
    """

    per_step: bool = False
    divisor: Tensor | None = None

    @property
    def phase(self) -> str:
        """Updates in another scale have other norms, so each phase has a clip bound of its own."""
        return "plain" if self.divisor is None else "preconditioned"

    def encode(self, update: Tensor, reach: float) -> Tensor:
        """At a hospital: the (d,) update as it is clipped; in place.

        Args:
            reach: of this intermediary's local steps, in units of one step.
        """
        if self.per_step:
            update /= reach
        if self.divisor is not None:
            update /= self.divisor
        return update

    def decode(self, mean: Tensor, noise_std: float, mean_reach: Callable[[], float]) -> tuple[Tensor, float]:
        """At the server: the released (d,) mean in the model's scale, and its noise's standard deviation.

        Args:
            mean_reach: gives the mean reach over all intermediaries of all hospitals; asked only if needed.
        """
        if not self.per_step:
            return mean, noise_std
        factor = mean_reach()
        return mean * factor, noise_std * factor
