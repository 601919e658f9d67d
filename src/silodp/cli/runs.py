"""`silodp runs`: what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silodp.cli.terminal import say

if TYPE_CHECKING:
    from silodp.runs.listing import Listed


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER…", help="Folders of runs; default: runs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """List runs: how far each has come, both ε, and its headline metric."""
    from silodp.files import to_json
    from silodp.runs.listing import list_runs

    places = folders or [Path("runs")]
    found = list_runs(places if folders or places[0].is_dir() else [])
    if as_json:
        print(to_json([one.to_dict() for one in found], indent=2))
    elif found:
        _show(found, places[0] if len(places) == 1 else None)
    else:
        say(f"no runs in {', '.join(map(str, places))}; start one with `silodp run`")


def _show(found: list[Listed], below: Path | None) -> None:
    """A line a run.

    Args:
        below: the one folder that was looked into; names are given from there on.
    """
    from rich.table import Table

    from silodp.cli.display import print_table
    from silodp.cli.terminal import console as terminal
    from silodp.privacy.events import UNITS
    from silodp.runs.schema import or_nan
    from silodp.runs.wording import describe_state, show_epsilon

    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state", overflow="fold")
    for heading in ("ε for a\nhospital", "ε inter-\nmediary"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("metric")
    table.add_column("when")
    for one in found:
        name = one.folder.relative_to(below) if below and one.folder != below else one.folder
        epsilon, metric = one.epsilon, f"{one.headline} {or_nan(one.value):.3f}"
        star = "" if epsilon is None or epsilon["covers_everything"] else "*"
        table.add_row(
            str(name),
            describe_state(one),
            *(show_epsilon(epsilon[unit]) + star if epsilon else "–" for unit in UNITS),
            "–" if one.value is None else metric if one.part == "test" else f"{metric} (val.)",
            f"{one.when:%Y-%m-%d %H:%M}",
        )
    print_table(terminal(), table, may_go=("when", "metric"))
    if any(one.epsilon and not one.epsilon["covers_everything"] for one in found):
        say("* ε does not cover everything: `silodp privacy RUN` says what")
    for one in found:
        if one.problem:
            say(one.problem)
