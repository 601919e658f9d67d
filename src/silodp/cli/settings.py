"""`silodp presets` and `silodp settings`: lists read off the settings classes and their docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silodp.cli.options import Json
from silodp.cli.terminal import console, print_json, say
from silodp.errors import InputError, did_you_mean
from silodp.files import to_json

if TYPE_CHECKING:
    from pydantic import BaseModel


def presets() -> None:
    """List the presets."""
    from silodp.cli.tables import plain_table
    from silodp.experiment import Experiment, preset_names

    table = plain_table("preset", "rounds", "what it is")
    for name in preset_names():
        preset = Experiment.load(name)
        table.add_row(name, str(preset.rounds), preset.description)
    console().print(table)


def settings(
    section: Annotated[str | None, typer.Argument(help="Such as clipping; default: all.")] = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md.")] = False,
) -> None:
    """List the settings for `--set` and TOML files, with defaults."""
    tree = describe_settings()
    if section is not None:
        if section not in tree:
            raise InputError(
                f"{section}: no such section; there are {', '.join(tree)}" + did_you_mean(section, tree)
            )
        tree = {section: tree[section]}
    if as_json:
        print_json(tree)
        return
    if as_markdown:
        print("\n".join(_markdown(tree)).rstrip())
        return
    say("\n".join(_lines(tree)).rstrip())


def describe_settings() -> dict[str, Any]:
    """By section: its description, and its settings or its rules with theirs."""
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
            "what": _meaning(kind, name),
        }
        for name, field in kind.model_fields.items()
        if name not in without
    }


def _meaning(kind: type[BaseModel], name: str) -> str:
    """The docstring of a field, in its class or in the nearest base class that has one."""
    texts = (_field_docstrings(one.__module__).get((one.__name__, name)) for one in kind.__mro__)
    return next(filter(None, texts), "")


@cache
def _field_docstrings(module: str) -> dict[tuple[str, str], str]:
    """By (class, field). Pydantic can do this, but would read every class's source at every start."""
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
    """Every setting as text; what several choices of a section share is explained once."""
    for name, section in tree.items():
        prefix, explained = "" if name == "experiment" else f"{name}.", set[str]()
        yield f"{name}: {section['what']}" if "what" in section else name
        yield from _list(section.get("settings", {}), prefix, explained)
        for rule, chosen in section.get("choices", {}).items():
            usual = " (default)" if rule == section["default"] else ""
            yield f"  {section['choose']} = {rule}{usual}: {chosen['what']}"
            yield from _list(chosen["settings"], f"  {prefix}", explained)
        yield ""


def _list(settings: dict[str, dict[str, Any]], prefix: str, explained: set[str]) -> Iterator[str]:
    for name, setting in settings.items():
        line = f"  {prefix}{name}"
        if setting["default"] is not None:
            line += f" = {to_json(setting['default'])}"
        if setting["what"] not in explained:
            line += f" ({', '.join(map(str, setting['values']))})" if setting["values"] else ""
            line += f": {setting['what']}" if setting["what"] else ""
        yield line
        explained.add(setting["what"] or name)


def _markdown(tree: dict[str, Any]) -> Iterator[str]:
    """docs/settings.md: each choice with a table, after what all choices of its section share."""
    yield "<!-- Written by `silodp settings --markdown`; change the docstrings of the classes instead. -->\n"
    yield "# Settings\n"
    yield "Use these names after `--set` (`--set clipping.bound=2`) or as tables in a TOML file."
    yield "A setting that the chosen rule does not have is refused. `silodp settings` prints the same list."
    yield "A dash means that there is no fixed default; the meaning then says what applies.\n"
    for name, section in tree.items():
        prefix, choices = "" if name == "experiment" else f"{name}.", section.get("choices", {})
        yield f"## {name}\n"
        if "what" in section:
            yield f"{_cell(section['what'])}\n"
        shared = section.get("settings") or _shared([one["settings"] for one in choices.values()])
        if choices:
            yield f"Choose with `{section['choose']}`; the default is `{section['default']}`.\n"
        if choices and shared:
            yield "Every choice has:\n"
        yield from _table(shared, prefix)
        for rule, chosen in choices.items():
            own = {key: one for key, one in chosen["settings"].items() if key not in shared}
            yield f"### {section['choose']} = {rule}\n"
            yield f"{_cell(chosen['what'])}\n"
            yield from _table(own, prefix)


def _shared(each: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The settings that all choices of a section have, with one default and one meaning."""
    return {
        name: setting for name, setting in each[0].items() if all(one.get(name) == setting for one in each)
    }


def _table(settings: dict[str, dict[str, Any]], prefix: str) -> Iterator[str]:
    if not settings:
        return
    yield "| setting | default | values | meaning |"
    yield "|---|---|---|---|"
    for name, one in settings.items():
        default = "–" if one["default"] is None else f"`{to_json(one['default'])}`"
        values = ", ".join(f"`{value}`" for value in one["values"] or ())
        yield f"| `{prefix}{name}` | {default} | {values} | {_cell(one['what'])} |"
    yield ""


def _cell(text: str) -> str:
    """Escapes |, * and _ outside of code between backticks."""
    parts = text.replace("|", r"\|").split("`")
    parts[::2] = [re.sub(r"([*_])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
