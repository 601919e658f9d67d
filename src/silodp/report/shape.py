"""What the page relies on in a run's files, so that a damaged one ends in a line that says where.

Only what is read for the page is looked at; anything else may be there or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from silodp.errors import InputError

Values = dict[str, float | None]  # metrics by name; None where one is not defined


class _Part(BaseModel):
    """Of a file: numbers must be numbers there, and more than this may be there."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Validation(_Part):
    mean: Values
    hospitals: dict[str, Values]


class RoundShape(_Part):
    """A line of metrics.jsonl. Other curves bear gaps, so their numbers need not be there."""

    round: int
    intermediaries: int
    validation: _Validation


class _Tested(_Part):
    round: int
    mean: Values
    hospitals: dict[str, Values]


class _Tests(_Part):
    last: _Tested
    best: _Tested


class _Spent(_Part):
    hospital: float | None
    intermediary: float | None


class _Data(_Part):
    position_auc: float | None = None


class SummaryShape(_Part):
    """summary.json."""

    test: _Tests
    epsilon: _Spent
    cohort: _Data
    stopped: str | None
    parameters: int
    device: str
    torch: str
    wall_seconds: float
    silodp: str | None = None  # since when runs say which version trained them


class _Held(_Part):
    images: int
    classes: dict[str, int]


class _Parts(_Part):
    train: _Held
    validation: _Held
    test: _Held


class CohortShape(_Part):
    """cohort.json."""

    images: int
    channels: int
    size: Annotated[list[int], Field(min_length=2, max_length=2)]
    target: str
    classes: list[Any]
    hospitals: Annotated[dict[str, _Parts], Field(min_length=1)]
    patients: int | None = None
    left_out: list[Any] | None = None
    notes: list[Any] | None = None
    files: dict[str, Any] | None = None
    members: dict[str, dict[str, list[str]]] | None = None


def expect(shape: type[BaseModel], content: Mapping[str, Any], where: Path | str, way_out: str) -> None:
    """Refuses what the page could not be made from, by the first thing that is not as it should be."""
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        wrong = "is missing" if first["type"] == "missing" else "is not what silodp writes there"
        raise InputError(f"{where}: {field} {wrong}; {way_out}") from None
