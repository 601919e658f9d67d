"""The same releases, seen from three places: outside, at the coordinator, and at another hospital.

Where the server adds the noise (central), it sees every contribution as it is: no ε holds against it. Where
hospitals share the noise, the coordinator sees single contributions with one share each, and a hospital can
take its own share off the sum again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from silodp.privacy.accountants import hospital_epsilon
from silodp.privacy.events import Event


@dataclass(frozen=True)
class Adversaries:
    """ε of a whole hospital, add-or-remove, against who looks; infinite: no guarantee.

    Attributes:
        outside: whoever sees what is released: the model, and all between.
        coordinator: who also sees every contribution on its way.
        another_hospital: who also knows its own contributions, and its own shares of the noise.
    """

    outside: float
    coordinator: float
    another_hospital: float


def against(events: Sequence[Event], delta: float, shares: int) -> Adversaries:
    """ε against each of the three.

    Args:
        events: of the releases.
        delta: for a hospital.
        shares: with how many hospitals' shares the noise is full; 0: the server adds it all.
    """
    outside = hospital_epsilon(events, delta)
    if not shares:
        return Adversaries(outside, math.inf, outside)

    def inside(noise: float) -> float:
        """ε where this part of the noise's standard deviation is unknown, and who takes part is known."""
        seen = [
            replace(
                event,
                noise_multiplier=event.noise_multiplier * noise,
                participation="all",
                sampling_rate=1.0,
            )
            for event in events
        ]
        return hospital_epsilon(seen, delta)

    # The hospital looked at and the one that looks have both answered: of their shares, one is known.
    unknown = (max(shares, 2) - 1) / shares
    return Adversaries(outside, inside(1 / math.sqrt(shares)), inside(math.sqrt(unknown)))
