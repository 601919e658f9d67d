"""Hounsfield units as grey: the windows through which radiologists look at a head CT."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOWS = ((40.0, 80.0), (80.0, 200.0), (600.0, 2800.0))  # (level, width): brain, subdural, bone


def window(units: NDArray[Any], level: float, width: float) -> NDArray[np.float32]:
    """0 at level − width/2 and below, 1 at level + width/2 and above, a straight line between."""
    grey: NDArray[np.float32] = (units.astype(np.float32) - level) / width + 0.5
    return grey.clip(0, 1)


def head_windows(units: NDArray[Any], channels: int = 3) -> NDArray[np.float32]:
    """(…, height, width) Hounsfield units as (…, channels, height, width): the first ones of `WINDOWS`."""
    return np.stack([window(units, *each) for each in WINDOWS[:channels]], axis=-3)
