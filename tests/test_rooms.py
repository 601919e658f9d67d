"""Who may import whom: the way of the data has one direction, and each room knows only what it needs."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import silodp

ROOT = Path(silodp.__file__).parent
OUTER = {
    "attacks",
    "bench",
    "cli",
    "deploy",
    "inference",
    "report",
    "runs",
    "studies",
    "tracking",
}  # rooms around the method
METHOD = {
    "changes", "clipping", "compatibility", "diagnostics", "engines", "errors", "experiment", "facts",
    "federation", "hospital", "intermediary", "local", "mechanism", "messages", "models", "noise",
    "participation", "privacy", "refusals", "releases", "server_optimizers", "settings", "tasks",
    "update_map",
}  # fmt: skip


@cache
def imports() -> list[tuple[str, str, str]]:
    """(the room or module at the root, the file in it, what it imports), also inside functions."""
    return list(_imports())


def _imports() -> Iterator[tuple[str, str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            yield from ((file.parts[0].removesuffix(".py"), str(file), name) for name in names)


def of_silodp(name: str) -> str:
    """The room that an import leads to; empty for other packages."""
    return [*name.split("."), ""][1] if name.startswith("silodp") else ""


@pytest.mark.parametrize(
    ("rooms", "allowed"),
    [
        ({"errors"}, set()),
        ({"noise"}, {"noise", "errors"}),
        ({"privacy"}, {"privacy", "errors"}),
        ({"messages"}, {"errors", "privacy", "update_map"}),  # a plan names the events that it will cause
        (METHOD, METHOD | {"cohorts", "files", "tensor_files"}),
        # Nothing of a federation: what is generated has seen nobody's data.
        ({"pretraining"}, {"pretraining", "cohorts", "errors", "models", "noise", "tasks"}),
    ],
)
def test_imports_of_a_package_are_restricted(rooms: set[str], allowed: set[str]) -> None:
    seen = [(file, name) for room, file, name in imports() if room in rooms and of_silodp(name)]
    assert [one for one in seen if of_silodp(one[1]) not in allowed] == []


def test_cohorts_know_nothing_of_privacy_or_runs() -> None:
    forbidden = OUTER | {"privacy", "mechanism", "federation"}
    assert [one for one in imports() if one[0] == "cohorts" and of_silodp(one[2]) in forbidden] == []


def test_only_the_command_line_imports_rich_and_typer() -> None:
    seen = [
        one for one in imports() if one[2].split(".")[0] in ("rich", "typer") or of_silodp(one[2]) == "cli"
    ]
    assert {room for room, _, _ in seen} == {"cli", "__main__"}  # `python -m silodp` is the command line


def test_every_package_has_an_import_rule() -> None:
    rooms = {room for room, _, _ in imports()}
    assert rooms >= METHOD | OUTER
