"""Every `silodp` command that a page shows is one that the command line takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from silodp.cli.commands import app
from silodp.experiment import Experiment, preset_names
from silodp.studies import study_names

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of every line of a shell block that runs silodp."""
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            for line in block.splitlines():
                found = re.match(r"(?:\w+=\S+ )?(?:\.venv/bin/)?silodp (.*)", line)
                if found:
                    yield page.name, found[1]


SHOWN = sorted(set(commands()))


def test_pages_show_commands() -> None:
    assert {page for page, _ in SHOWN} >= {"README.md", "start.md", "deploy.md", "data.md", "results.md"}
    assert len(SHOWN) > 60


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_a_command_is_one_that_there_is(page: str, line: str) -> None:
    words = shlex.split(re.sub(r"[\[\]]", "", line), comments=True)
    command, name = get_command(app), "silodp"
    while hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, page
        command = command.commands[name]
    given = command.make_context(name, words).params
    if name == "run" and given["experiment"] in preset_names():
        Experiment.load(given["experiment"], given["changes"])
    if name == "study" and given["name"] is not None:
        assert given["name"] in study_names()
