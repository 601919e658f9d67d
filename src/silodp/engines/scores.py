"""Serialisation of parameters and of validation and test scores, for engines with remote hospitals."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field, FiniteFloat
from torch import Tensor
from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12

from silodp.errors import InputError
from silodp.files import as_record, parse_json, to_json
from silodp.tasks.scores import RESAMPLES, Scores

Count = Annotated[int, Field(ge=0, lt=2**40)]


class _Scores(TypedDict):
    values: dict[str, FiniteFloat | None]
    images: Count
    patients: Count | None
    resampled: dict[
        str, Annotated[list[FiniteFloat | None], Field(min_length=RESAMPLES, max_length=RESAMPLES)]
    ]


def parameters_to_bytes(parameters: Tensor) -> bytes:
    """Serialises (d,) parameters as float32."""
    return bytes(parameters.detach().float().cpu().contiguous().numpy().data)


def parameters_from(content: bytes, count: int) -> Tensor:
    """Reads (d,) float32 on the CPU; InputError unless there are `count` finite ones."""
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
    """Reads scores strictly: raises InputError where a number is expected and something else is there."""
    try:
        found = as_record(_Scores, parse_json(content))
    except ValueError:
        raise InputError("evaluate: the answer holds no scores of silodp") from None
    # NaN is null in JSON; NumPy reads None as NaN.
    values = {name: float(np.float64(value)) for name, value in found["values"].items()}
    resampled = {
        name: torch.from_numpy(np.array(drawn, np.float64)) for name, drawn in found["resampled"].items()
    }
    return Scores(values, found["images"], found["patients"], resampled)
