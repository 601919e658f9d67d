"""Validation and test figures, where a hospital lets them out: how they travel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from silodp.errors import InputError
from silodp.files import parse_json, to_json
from silodp.tasks.scores import RESAMPLES, Scores


def parameters_to_bytes(parameters: Tensor) -> bytes:
    """(d,) single precision, as they lie in memory."""
    return bytes(parameters.detach().float().cpu().contiguous().numpy().data)


def parameters_from(content: bytes, count: int) -> Tensor:
    """(d,) on the CPU; refused where there are not `count` finite ones."""
    if len(content) != 4 * count:
        raise InputError(f"evaluate: {len(content)} bytes, and {count} parameters were agreed on")
    values = torch.frombuffer(bytearray(content), dtype=torch.float32)
    if not bool(values.isfinite().all()):
        raise InputError("evaluate: the parameters are not all finite")
    return values


def scores_to_bytes(scores: Scores) -> bytes:
    resampled = {name: drawn.tolist() for name, drawn in scores.resampled.items()}
    fields = {"values": scores.values, "images": scores.images, "patients": scores.patients}
    return to_json({**fields, "resampled": resampled}).encode()


def scores_from_bytes(content: bytes) -> Scores:
    """Strictly: numbers where numbers belong; null is NaN."""
    try:
        fields: dict[str, Any] = parse_json(content)
        values = {str(name): _number(value) for name, value in fields["values"].items()}
        images, patients = fields["images"], fields["patients"]
        resampled = {
            str(name): torch.tensor([_number(value) for value in drawn], dtype=torch.float64)
            for name, drawn in fields["resampled"].items()
        }
        fits = type(images) is int and images >= 0 and (patients is None or type(patients) is int)
        fits = fits and all(len(drawn) == RESAMPLES for drawn in resampled.values())
    except (TypeError, ValueError, KeyError, AttributeError):
        fits = False
    if not fits:
        raise InputError("evaluate: the answer holds no figures of silodp")
    return Scores(values, images, patients, resampled)


def _number(value: object) -> float:
    if value is None:
        return float("nan")
    if type(value) not in (int, float):
        raise ValueError
    return float(value)  # type: ignore[arg-type]
