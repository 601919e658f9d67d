"""The whole command that trains on what `silodp data check` found: a small preset, and what it needs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from silodp.cohorts.form import fitting_size
from silodp.cohorts.inspection import Findings
from silodp.cohorts.kinds import PreparedCohort, StoredCohort
from silodp.experiment import Experiment
from silodp.models.kinds import UNetModel

SMALL_IMAGE = 64  # pixels, below which the smaller DenseNet is enough


def run_command(findings: Findings, **more: Any) -> str:
    """`silodp run PRESET --set …`, for a shell, which runs as it is.

    Args:
        findings: of files that can be trained on.
        more: further settings of the cohort.
    """
    settings, side = findings.settings, min(findings.shape[1:])
    preset = "prostatex" if findings.target == "mask" else "medmnist" if side < SMALL_IMAGE else "ich-small"
    base = Experiment.load(preset)
    cohort = said(settings) | more
    height, width = findings.shape[1:]
    levels = _levels(base, height, width)
    if (levels == 0 or side < 16) and not isinstance(settings, PreparedCohort):
        cohort["image_size"] = fitting_size(side)
        levels = _levels(base, cohort["image_size"], cohort["image_size"])
    # What the preset says of its own data and these have, too: said of these.
    effective = _effective(findings)
    own = base.cohort.model_fields_set & effective.keys() & type(settings).model_fields.keys()
    if settings.kind == base.cohort.kind:
        own -= {"image_size"}  # a size that was chosen for this very kind
    cohort = {name: effective[name] for name in sorted(own)} | cohort
    changes = {f"cohort.{name}": value for name, value in cohort.items()}
    if isinstance(base.model, UNetModel) and levels != base.model.levels:
        changes["model.levels"] = max(1, levels)
    return f"silodp run {preset} {options(changes)}"


def check_command(settings: StoredCohort, more: Mapping[str, Any]) -> str:
    """`silodp data check PATH --set …`, with what was said and more."""
    changes = {name: value for name, value in said(settings).items() if name not in ("kind", "path")}
    return f"silodp data check {shlex.quote(str(settings.path))} {options({**changes, **more})}"


def said(settings: StoredCohort) -> dict[str, Any]:
    """All that was said of a cohort, and which it is."""
    mine = settings.model_dump(include=settings.model_fields_set, exclude_none=True)
    return {"kind": settings.kind, "path": settings.path, **mine}


def options(changes: Mapping[str, Any]) -> str:
    """`--set key=value …`, for a shell."""
    return " ".join(
        "--set " + shlex.quote(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
        for name, value in changes.items()
    )


def _effective(findings: Findings) -> dict[str, Any]:
    """What holds for these files, whether it was said or follows from them."""
    assert findings.description is not None
    simulated = findings.description["simulated"]
    return {
        "hospitals": len(findings.description["hospitals"]),
        "partition": findings.settings.partition or ("equal" if simulated else "given"),
        "image_size": findings.shape[-1],
        "channels": findings.shape[0],
    }


def _levels(base: Experiment, height: int, width: int) -> int:
    """How often the preset's U-Net can halve such images and have 2 × 2 pixels left; 0: not at all."""
    most = base.model.levels if isinstance(base.model, UNetModel) else 1
    fits = (
        level
        for level in range(most, 0, -1)
        if not height % 2**level and not width % 2**level and min(height, width) >= 2 ** (level + 1)
    )
    return next(fits, 0) if isinstance(base.model, UNetModel) else 1
