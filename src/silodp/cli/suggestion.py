"""The full command that trains on what `silodp data check` found: a small preset and settings."""

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
    """`silodp run PRESET --set …`, quoted for a shell and complete.

    Args:
        findings: of files that can be trained on.
        more: further settings of the cohort.
    """
    settings, side = findings.settings, min(findings.shape[1:])
    preset = "prostatex" if findings.target == "mask" else "medmnist" if side < SMALL_IMAGE else "ich-small"
    base = Experiment.load(preset)
    cohort = explicit_settings(settings) | more
    height, width = findings.shape[1:]
    levels = _levels(base, height, width)
    if (levels == 0 or side < 16) and not isinstance(settings, PreparedCohort):
        cohort["image_size"] = fitting_size(side)
        levels = _levels(base, cohort["image_size"], cohort["image_size"])
    # Settings of the preset's own data that this kind has, too, must be replaced by those of these files.
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
    """`silodp data check PATH --set …`, with the settings so far and more."""
    given = explicit_settings(settings)
    changes = {name: value for name, value in given.items() if name not in ("kind", "path")}
    return f"silodp data check {shlex.quote(str(settings.path))} {options({**changes, **more})}"


def explicit_settings(settings: StoredCohort) -> dict[str, Any]:
    """Kind, path and everything else that was set explicitly."""
    mine = settings.model_dump(include=settings.model_fields_set, exclude_none=True)
    return {"kind": settings.kind, "path": settings.path, **mine}


def options(changes: Mapping[str, Any]) -> str:
    """`--set key=value …`, for a shell."""
    return " ".join(
        "--set " + shlex.quote(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
        for name, value in changes.items()
    )


def _effective(findings: Findings) -> dict[str, Any]:
    """Settings that hold for these files, whether set or derived from the files."""
    assert findings.description is not None
    simulated = findings.description["simulated"]
    return {
        "hospitals": len(findings.description["hospitals"]),
        "partition": findings.settings.partition or ("equal" if simulated else "given"),
        "image_size": findings.shape[-1],
        "channels": findings.shape[0],
    }


def _levels(base: Experiment, height: int, width: int) -> int:
    """How often the preset's U-Net can halve such images to 2 × 2 pixels or more; 0: not once."""
    if not isinstance(base.model, UNetModel):
        return 1
    fits = (
        level
        for level in range(base.model.levels, 0, -1)
        if not height % 2**level and not width % 2**level and min(height, width) >= 2 ** (level + 1)
    )
    return next(fits, 0)
