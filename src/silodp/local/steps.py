"""The number of local steps: public, since it follows from training set sizes and settings."""

from __future__ import annotations

import math

from silodp.local.optimizers import LocalSettings


def batch_count(samples: int, batch_size: int) -> int:
    """Batches in one epoch, of nearly equal sizes and never of a single image, which BatchNorm rejects."""
    return max(1, min(math.ceil(samples / batch_size), samples // 2))


def planned_steps(samples: int, settings: LocalSettings) -> int:
    """Optimizer steps on `samples` images in one round."""
    return max(1, round(settings.epochs * batch_count(samples, settings.batch_size)))
