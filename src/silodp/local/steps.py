"""How many steps an intermediary takes: public, since the sizes of training sets are."""

from __future__ import annotations

import math

from silodp.local.optimizers import LocalSettings


def batch_count(samples: int, batch_size: int) -> int:
    """Batches in one epoch, of nearly equal size and never of one image, which BatchNorm cannot use."""
    return max(1, min(math.ceil(samples / batch_size), samples // 2))


def planned_steps(samples: int, settings: LocalSettings) -> int:
    """Optimizer steps on `samples` images in one round: public, since a training set's size is."""
    return max(1, round(settings.epochs * batch_count(samples, settings.batch_size)))
