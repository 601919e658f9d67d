"""Messages for refused settings: the field, the value, and the values that it may have.

The allowed values are derived from the field's annotation, so a new setting needs no message of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from silodp.errors import InputError, did_you_mean, short

_NUMBERS = {int: "a whole number", float: "a number"}


def describe_error(error: ValidationError, model: type[BaseModel], *above: str) -> str:
    """Turns pydantic's first error into one line that names the field, the value and the way out.

    Args:
        error: from pydantic.
        model: the class that was to be built.
        above: names of the sections that contain it.
    """
    finding = error.errors()[0]
    kind, loc = finding["type"], finding["loc"]
    field, value = ".".join((*above, *map(str, loc))), short(finding["input"])
    if kind == "value_error":
        reason = finding["ctx"]["error"]
        if not field or isinstance(reason, InputError):
            return str(reason)
        return f"{field} = {value}: {reason}"
    section, setting, rest = _locate(model, loc)
    if setting is None:
        known = list(_names(section, field.rpartition(".")[0]))
        return f"{field}: no such setting; there are {', '.join(section.model_fields)}" + did_you_mean(
            field, known
        )
    allowed = _allowed(setting.annotation, setting.metadata)
    if kind == "missing" and not rest:
        return f"{field}: is missing; set it to {allowed}"
    if kind == "missing":  # one of a fixed number of values
        field = field.rpartition(".")[0]
    if (within := section_of(setting.annotation)) is not None:
        such = next(iter(within.model_fields))
        return f"{field} = {value}: it is a section; set what is in it, such as {field}.{such}"
    finite = " that is finite" if kind == "finite_number" and setting.annotation is not int else ""
    close = did_you_mean(finding["input"], choices_of(setting.annotation))
    return f"{field} = {value}: choose {allowed}{finite}{close}"


def _locate(
    model: type[BaseModel], loc: Sequence[str | int]
) -> tuple[type[BaseModel], FieldInfo | None, Sequence[str | int]]:
    """Follows an error's location: the section, the setting, and the rest of the path inside the setting."""
    for number, part in enumerate(loc):
        setting = model.model_fields.get(str(part))
        within = section_of(setting.annotation) if setting else None
        if within is None or number == len(loc) - 1:
            return model, setting, loc[number + 1 :]
        model = within
    return model, None, ()


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The settings class of a field that is a section; None for other fields."""
    kinds = (annotation, *get_args(annotation))
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _names(model: type[BaseModel], above: str) -> Iterator[str]:
    """Yields the full names of a section's settings and of those in its subsections."""
    for name, setting in model.model_fields.items():
        full = f"{above}.{name}" if above else name
        yield full
        within = section_of(setting.annotation)
        rules = getattr(within, "known", {}).values() if within else ()
        for kind in (within, *rules) if within else ():
            yield from _names(kind, full)


def choices_of(annotation: Any) -> list[Any]:
    """The values of a setting that is a choice (`Literal`); empty for others."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in choices_of(part)]


def _allowed(annotation: Any, metadata: Sequence[Any]) -> str:
    """The values of a type that fit its constraints, such as "a number above 0 and below 1".

    Args:
        annotation: of a field, or of a part of one.
        metadata: its constraints, as pydantic gives them beside the annotation.
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _allowed(parts[0], _flat(parts[1:]))
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}" if len(parts) > 1 else str(parts[0])
    if origin is tuple:
        count = "" if ... in parts else f" of {len(parts)}"
        return f"a list{count}, each {_allowed(parts[0], ())}"
    if parts:  # of a union; None is to leave it out
        return " or ".join(_allowed(part, metadata) for part in parts if part is not type(None))
    if annotation in _NUMBERS:
        return _NUMBERS[annotation] + _range(_flat(metadata))
    if annotation is bool:
        return "true or false"
    return "a text" + "".join(_form(one) for one in _flat(metadata))


def _flat(metadata: Sequence[Any]) -> list[Any]:
    """Constraints one by one: those that stand in a `Field(…)` within an annotation are taken out of it."""
    return [
        one for given in metadata for one in (given.metadata if isinstance(given, FieldInfo) else [given])
    ]


def _range(metadata: Sequence[Any]) -> str:
    """The limits of a number as words that follow "a number"; empty where there are none."""
    bounds = {name: found for one in metadata for name in ("gt", "ge", "lt", "le")
              if (found := getattr(one, name, None)) is not None}  # fmt: skip
    if {"ge", "le"} <= bounds.keys():
        return f" from {bounds['ge']} to {bounds['le']}"
    words = {"gt": "above {}", "ge": "of at least {}", "lt": "below {}", "le": "of at most {}"}
    limits = [words[name].format(f"{bound:g}") for name, bound in bounds.items()]
    return f" {' and '.join(limits)}".replace("and of", "and") if limits else ""


def _form(constraint: Any) -> str:
    """Describes a constraint on a string."""
    if pattern := getattr(constraint, "pattern", None):
        signs = re.fullmatch(r"\^\[A-Za-z0-9(.*)]\+\$", pattern)
        return f" of letters, digits and {' '.join(signs[1])} only" if signs else f" that fits {pattern}"
    return " that is not empty" if getattr(constraint, "min_length", 0) else ""
