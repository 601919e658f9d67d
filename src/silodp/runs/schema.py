"""What a run writes into its files, said once; `experiment.RUN_FORMAT` counts its versions.

NaN and infinity are null there. What has a default here may be missing, and readers bear that; without the
rest a file is damaged, which ends in a line that says where.
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
    """A line of metrics.jsonl. Curves bear gaps, so most numbers need not be there."""

    round: int
    intermediaries: int  # v
    validation: _Validation
    applied: Any = None  # False: the round only measured
    intermediaries_capped: Any = None
    clip_bound: Any = None  # null: infinite
    noise_std: Any = None
    xi: Any = None  # null: not measured, as the next four
    phi: Any = None
    lambda_: Annotated[Any, Field(alias="lambda")] = None
    cosine_std: Any = None
    train_loss: Any = None
    epsilon: Any = None  # as in summary.json, up to this round
    participants: Any = None
    absent: Any = None  # who was asked and did not count, with the reason
    ignored: Any = None  # answers beside those that were asked for
    images: Any = None  # that took part
    training_seconds: Any = None
    seconds: Any = None
    ledger: Any = None  # the ledger's hash after this round


class _Tested(_Part):
    round: int
    mean: Values
    hospitals: dict[str, Values]


class _Tests(_Part):
    last: _Tested
    best: _Tested


class _Spent(_Part):
    """`privacy.accountants.Epsilon`; null: no guarantee."""

    hospital: float | None
    intermediary: float | None
    replace_one: Any = None
    accountant: Any = None
    covers_everything: Any = None
    withdrawn: Any = None
    image: Any = None
    amplified: Any = None


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
    silodp: str | None = None
    experiment: Any = None  # its name
    task: Any = None
    headline: Any = None
    members: Any = None  # how many hospitals train
    rounds: Any = None  # done
    delta: Any = None
    image_delta: Any = None
    noise_multiplier: Any = None  # of both units
    intermediaries: Any = None  # v of the last round
    budget: Any = None
    best_round: Any = None
    not_covered_by_epsilon: Any = None
    training_seconds: Any = None
    images_per_second: Any = None
    ledger: Any = None  # its last hash
    model: Any = None  # SHA-256 of model.safetensors


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
    cohort: Any = None  # its name
    storage: Any = None
    classes_counted: Any = None  # whether nobody said how many there are
    whole_patients: Any = None  # whether intermediaries take whole patients
    layout: Any = None
    simulated: Any = None  # the hospitals were dealt out; of a cohort of files, as what follows
    partition: Any = None
    position_auc: Any = None
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
