"""`silodp settings`: what can be set, and the rules to choose from, as the classes themselves say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from silodp.cli.terminal import say
from silodp.errors import InputError
from silodp.files import to_json

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from silodp.settings import Settings


def settings(
    section: Annotated[str | None, typer.Argument(help="Such as clipping; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """List what `--set` and a TOML file can say, with defaults."""
    tree = described()
    if section is not None:
        if section not in tree:
            raise InputError(f"{section}: no such section; there are {', '.join(tree)}")
        tree = {section: tree[section]}
    if as_json:
        print(to_json(tree, indent=2))
        return
    say("\n".join(_lines(tree)).rstrip())


def described() -> dict[str, Any]:
    """Each section's words and settings, or choices with theirs; of «experiment» names have no prefix."""
    from silodp.experiment import RULES, Experiment

    fields = Experiment.model_fields
    sections = {name: kind for name, field in fields.items() if (kind := _section(field)) is not None}
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


def _section(field: FieldInfo) -> type[Settings] | None:
    from silodp.settings import Settings

    choices = (field.annotation, *get_args(field.annotation))
    return next((one for one in choices if isinstance(one, type) and issubclass(one, Settings)), None)


def _settings(kind: type[Settings], *without: str) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "default": None if field.is_required() else field.default,
            "values": _values(field.annotation),
            "what": _words(kind, name),
        }
        for name, field in kind.model_fields.items()
        if name not in without
    }


def _values(annotation: Any) -> list[Any]:
    """What a field takes, where that is a list."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _values(part)]


def _words(kind: type[Settings], name: str) -> str:
    """What a field is, said where it is defined or where it was first."""
    for one in kind.__mro__:
        field = getattr(one, "model_fields", {}).get(name)
        if field is not None and field.description:
            return " ".join(field.description.split())
    return ""


def _first_line(kind: type[Settings]) -> str:
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
