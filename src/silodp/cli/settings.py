"""`silodp presets` and `silodp settings`: what can be run and set, as the classes themselves say it."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silodp.cli.terminal import console, say
from silodp.errors import InputError, did_you_mean
from silodp.files import to_json

if TYPE_CHECKING:
    from pydantic import BaseModel


def presets() -> None:
    """List the presets."""
    from rich.table import Table

    from silodp.experiment import Experiment, preset_names

    table = Table(box=None, pad_edge=False)
    for column in ("preset", "rounds", "what it is"):
        table.add_column(column)
    for name in preset_names():
        preset = Experiment.load(name)
        table.add_row(name, str(preset.rounds), preset.description)
    console().print(table)


def settings(
    section: Annotated[str | None, typer.Argument(help="Such as clipping; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """List what `--set` and a TOML file can say, with defaults."""
    tree = described()
    if section is not None:
        if section not in tree:
            raise InputError(
                f"{section}: no such section; there are {', '.join(tree)}" + did_you_mean(section, tree)
            )
        tree = {section: tree[section]}
    if as_json:
        print(to_json(tree, indent=2))
        return
    say("\n".join(_lines(tree)).rstrip())


def described() -> dict[str, Any]:
    """Each section's words and settings, or choices with theirs; of «experiment» names have no prefix."""
    from silodp.experiment import RULES, Experiment
    from silodp.refusals import section_of

    fields = Experiment.model_fields
    sections = {
        name: kind for name, field in fields.items() if (kind := section_of(field.annotation)) is not None
    }
    tree: dict[str, Any] = {"experiment": {"settings": _settings(Experiment, "format", *sections)}}
    for name, kind in sections.items():
        if name in RULES:
            base = RULES[name]
            tree[name] = {
                "what": _first_line(base),
                "choose": f"{name}.{base.key}",
                "default": base.usual,
                "choices": {
                    rule: {"what": _first_line(chosen), "settings": _settings(chosen, base.key)}
                    for rule, chosen in base.known.items()
                },
            }
        else:
            tree[name] = {"what": _first_line(kind), "settings": _settings(kind)}
    return tree


def _settings(kind: type[BaseModel], *without: str) -> dict[str, dict[str, Any]]:
    from silodp.refusals import choices_of

    return {
        name: {
            "default": None if field.is_required() else field.default,
            "values": choices_of(field.annotation),
            "what": _words(kind, name),
        }
        for name, field in kind.model_fields.items()
        if name not in without
    }


def _words(kind: type[BaseModel], name: str) -> str:
    """What a field is, said where it is defined or where it was first."""
    texts = (_texts(one.__module__).get((one.__name__, name)) for one in kind.__mro__)
    return next(filter(None, texts), "")


@cache
def _texts(module: str) -> dict[tuple[str, str], str]:
    """By class and field, the text under it. Pydantic would read every class's source, at every start."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # built in, or typed into a shell
        return {}
    return {
        (one.name, field.target.id): " ".join(text.value.value.split())
        for one in ast.walk(tree)
        if isinstance(one, ast.ClassDef)
        for field, text in pairwise(one.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _first_line(kind: type[BaseModel]) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _lines(tree: dict[str, Any]) -> Iterator[str]:
    """Every setting; what several choices of a section have in common is explained once."""
    for name, section in tree.items():
        prefix, told = "" if name == "experiment" else f"{name}.", set[str]()
        yield f"{name}: {section['what']}" if "what" in section else name
        yield from _list(section.get("settings", {}), prefix, told)
        for rule, chosen in section.get("choices", {}).items():
            usual = " (default)" if rule == section["default"] else ""
            yield f"  {section['choose']} = {rule}{usual}: {chosen['what']}"
            yield from _list(chosen["settings"], f"  {prefix}", told)
        yield ""


def _list(settings: dict[str, dict[str, Any]], prefix: str, told: set[str]) -> Iterator[str]:
    for name, setting in settings.items():
        line = f"  {prefix}{name}"
        if setting["default"] is not None:
            line += f" = {to_json(setting['default'])}"
        if setting["what"] not in told:
            line += f" ({', '.join(map(str, setting['values']))})" if setting["values"] else ""
            line += f": {setting['what']}" if setting["what"] else ""
        yield line
        told.add(setting["what"] or name)
