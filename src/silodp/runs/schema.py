"""The schema of a run's files, for the code that writes and the code that reads them.

`experiment.RUN_FORMAT` is its version, so a run that this silodp reads has all fields. NaN and infinity are
null in the files, but not in records that a running run returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar, cast, get_args

from pydantic import Field, ValidationError
from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12

from silodp.errors import InputError
from silodp.files import as_record, read_json

Record = TypeVar("Record", bound=Mapping[str, object])  # a TypedDict

Count = Annotated[int, Field(ge=1)]

Values = Mapping[str, float | None]
"""Metrics by name; None where one is not defined."""

Tested = Literal["last", "best"]
"""The round whose model is tested."""
TESTED: tuple[Tested, ...] = get_args(Tested)


class UnitRecord(TypedDict):
    hospital: float | None
    intermediary: float | None


class EpsilonRecord(UnitRecord):
    """`privacy.accountants.Epsilon`; null: no guarantee."""

    replace_one: UnitRecord
    accountant: str
    covers_everything: bool
    withdrawn: str
    image: float | None  # null: no hospital noises single images
    amplified: bool


class MetricsRecord(TypedDict):
    mean: Values
    hospitals: Mapping[str, Values]


class _Planned(TypedDict):
    round: Count
    applied: bool  # False: the round only measured
    intermediaries: Count  # v
    intermediaries_capped: bool
    clip_bound: float | None  # null: infinite
    noise_std: float | None


_Unprotected = TypedDict(  # by a call, since `lambda` is a word of Python
    "_Unprotected",
    {
        "xi": float | None,
        "phi": float | None,
        "lambda": float | None,
        "cosine_std": float | None,
        "train_loss": float | None,
    },
)
"""What no ε covers; null where it was not measured."""


class RoundRecord(_Planned, _Unprotected):
    """A line of metrics.jsonl."""

    epsilon: EpsilonRecord  # up to this round
    validation: MetricsRecord
    participants: list[str]
    absent: dict[str, str]  # who was asked and did not count, with the reason
    ignored: list[list[str]]  # answers beside those that were asked for: who, why
    images: int  # that took part
    training_seconds: float
    seconds: float
    ledger: str  # the ledger's hash after this round


class CohortFacts(TypedDict):
    """What cohort.json and summary.json both say of the data; what may be missing is of cohorts of files."""

    cohort: str  # its name
    images: int
    classes_counted: bool  # whether nobody said how many there are
    whole_patients: bool  # whether intermediaries take whole patients
    simulated: NotRequired[bool]  # the hospitals were dealt out
    partition: NotRequired[str]
    patients: NotRequired[int | None]
    position_auc: NotRequired[float | None]
    notes: NotRequired[list[str]]


class CohortInShort(CohortFacts):
    hospitals: int
    left_out: int


Edges = Annotated[list[float | None], Field(min_length=2, max_length=2)]
"""The lower and the upper end of an interval; null: not defined."""


class Intervals(TypedDict):
    """95 % of what metrics are where people are drawn anew."""

    mean: Mapping[str, Edges]
    hospitals: Mapping[str, Mapping[str, Edges]]


class Tried(TypedDict):
    images: int
    patients: int | None  # null: not known


Batch = Literal["any", "image", "scan", "hospital"]
"""What a network saw at a time; any: that makes no difference."""


class OtherWay(MetricsRecord):
    batch: Batch


class ModelTest(MetricsRecord):
    round: int
    intervals: Intervals
    tried: Mapping[str, Tried]  # on whom, by hospital
    batch: Batch
    other: OtherWay | None  # the same model seeing images the other way, where that makes a difference


class ModelTests(TypedDict):
    last: ModelTest
    best: ModelTest


class StartRecord(TypedDict):
    name: str
    origin: Literal["generated", "public", "unknown"]
    digest: str  # SHA-256 of its file


class Summary(TypedDict):
    """summary.json."""

    experiment: str  # its name
    task: str
    headline: str
    cohort: CohortInShort
    members: int  # how many hospitals train
    rounds: int  # done
    parameters: int
    epsilon: EpsilonRecord
    delta: float
    image_delta: float | None
    noise_multiplier: UnitRecord
    intermediaries: Count  # v of the last round
    budget: dict[str, Any] | None  # as experiment.toml has it
    stopped: str | None
    test: ModelTests
    best_round: int
    not_covered_by_epsilon: list[str]
    wall_seconds: float
    training_seconds: float
    images_per_second: float
    device: str
    torch: str
    silodp: str
    start: NotRequired[StartRecord | None]  # null: by chance; runs from before there were starts lack it
    ledger: str  # its last hash
    model: str  # SHA-256 of model.safetensors


class VersionRecord(TypedDict):
    silodp: str
    torch: str
    after_round: int  # what was done before they came to work; 0 at the start


class Versions(TypedDict):
    """versions.json: what has worked on the run, in order; one entry unless it was resumed with another."""

    versions: list[VersionRecord]


class Held(TypedDict):
    images: Count
    classes: dict[str, int]


class HeldParts(TypedDict):
    train: Held
    validation: Held
    test: Held


class CohortFile(CohortFacts):
    """cohort.json."""

    channels: int
    size: Annotated[list[int], Field(min_length=2, max_length=2)]  # height, width
    storage: str
    target: str
    classes: list[object]  # names, or whatever a cohort from Python calls them
    hospitals: Annotated[dict[str, HeldParts], Field(min_length=1)]
    layout: NotRequired[str]
    fit: NotRequired[Literal["stretch", "pad"]]
    left_out: NotRequired[list[str]]
    files: NotRequired[dict[str, str]]  # SHA-256 by name
    members: NotRequired[dict[str, dict[str, list[str]]]]  # names of images by hospital and part


def or_nan(value: float | None) -> float:
    """NaN for null, which a file has for a number that is not defined."""
    return math.nan if value is None else value


def or_infinite(value: float | None) -> float:
    """Infinity for null, which a file has for a number without bound."""
    return math.inf if value is None else value


def read_as(kind: type[Record], path: Path, way_out: str) -> Record:
    """Reads a JSON file as this kind; a damaged one is refused with `way_out`."""
    try:
        content = read_json(path)
    except InputError:
        raise
    except ValueError:
        content = None  # which is of no kind
    return checked(kind, content, path, way_out)


def checked(kind: type[Record], content: object, where: Path | str, way_out: str) -> Record:
    """Returns the content itself, which may have further fields; refuses it with the first error.

    Args:
        kind: a TypedDict. Types are checked strictly; texts are not converted to numbers.
        content: as JSON has it.
        where: the file, and the line in it.
        way_out: what to do about it.
    """
    try:
        as_record(kind, content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        wrong = "is missing" if first["type"] == "missing" else "is not what silodp writes there"
        raise InputError(f"{where}: {f'{field} {wrong}' if field else 'damaged'}; {way_out}") from None
    return cast(Record, content)
