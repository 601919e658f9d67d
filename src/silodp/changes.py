"""Changes to a tree of settings, such as `--set privacy.noise_multiplier=0.3`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from silodp.errors import InputError
from silodp.settings import PrivacySettings, Rule, Settings

Change = tuple[str, Any]
"""A setting, such as "privacy.noise_multiplier", and its new value."""


def pairs_of(changes: Sequence[str] | Mapping[str, Any]) -> list[Change]:
    """Changes from a list of "key=value", or from a mapping."""
    return list(changes.items() if isinstance(changes, Mapping) else map(parse_change, changes))


def parse_change(text: str) -> Change:
    """Splits "key=value", the value as TOML; a bare word is a string."""
    key, found, value = text.partition("=")
    if not found or not key.strip():
        raise InputError(f"--set {text!r}: write key=value, such as privacy.noise_multiplier=0.3")
    try:
        return key.strip(), tomllib.loads(f"value = {value.strip()}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Sets a value in `tree`, in place, under a key such as "privacy.noise_multiplier"."""
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InputError(f"{key}: {section} is a value, not a section")
    tree[last] = value


def drop_other_rules(
    tree: dict[str, Any], changes: Sequence[Change], rules: Mapping[str, type[Rule]]
) -> None:
    """Drops from `tree`, in place, settings that do not apply to the choices that `changes` make.

    Args:
        tree: settings by section.
        changes: to be applied to it.
        rules: the sections that are a choice among rules.
    """
    named = dict(changes)
    for section, base in rules.items():
        rule, settings = base.known.get(str(named.get(f"{section}.{base.key}"))), tree.get(section)
        if rule is not None and isinstance(settings, dict):
            tree[section] = {key: value for key, value in settings.items() if key in rule.model_fields}
    kinds: list[type[Settings]] = [PrivacySettings]
    for kind in kinds + [rule for base in rules.values() for rule in base.known.values()]:
        settings = tree.get(kind.section)
        for setting, (other, needed) in kind.only_with.items():
            if isinstance(settings, dict) and named.get(f"{kind.section}.{other}", needed) != needed:
                settings.pop(setting, None)
