"""Default size and channels of a cohort's images: colours are kept, nothing is enlarged."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from silodp.cohorts.catalogue import Catalogue, Measure, Scan
from silodp.cohorts.kinds import FileCohort

STEP = 16  # the paper's U-Net halves an image four times
LARGEST = 256  # unless more is asked for


def with_form(catalogue: Catalogue, settings: FileCohort) -> FileCohort:
    """Fills in image size and channels from the files, if the kind measures them and they are not set."""
    measure = catalogue.measure
    if measure is None or (settings.image_size and settings.channels):
        return settings

    def measured(scan: Scan) -> Measure | None:
        try:
            return measure(scan)
        except Exception:  # the reason is reported when it is decoded
            return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = [each for each in pool.map(measured, catalogue.scans) if each is not None]
    if not found:
        return settings
    side = max if settings.fit == "pad" else min
    size = settings.image_size or fitting_size(min(side(each.height, each.width) for each in found))
    channels = settings.channels or max(each.channels for each in found)
    return settings.model_copy(update={"image_size": size, "channels": channels})


def fitting_size(side: int) -> int:
    """The largest multiple of 16, from 16 to 256, that is no larger than a side (or 16, below that)."""
    return max(STEP, min(LARGEST, side // STEP * STEP))
