"""`silodp runs`: list runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silodp.cli.options import Json
from silodp.cli.terminal import print_json, say

if TYPE_CHECKING:
    from silodp.runs.listing import Listed


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER…", help="Folders of runs; default: runs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List runs: how far each has come, both ε, and its headline metric."""
    from silodp.runs.listing import list_runs

    places = folders or [Path("runs")]
    found = list_runs(places if folders or places[0].is_dir() else [])
    if as_json:
        print_json([one.to_dict() for one in found])
    elif found:
        _show(found, places[0] if len(places) == 1 else None)
    else:
        say(f"no runs in {', '.join(map(str, places))}; start one with `silodp run`")


def _show(found: list[Listed], below: Path | None) -> None:
    """Prints a line a run; names are relative to `below`, the folder that was searched, if there is one."""
    from rich.table import Column

    from silodp.cli.tables import plain_table, print_table, uncut
    from silodp.cli.terminal import console as terminal
    from silodp.privacy.events import UNITS
    from silodp.runs.schema import or_nan
    from silodp.runs.wording import describe_state, show_epsilon

    foldable = (Column(heading, overflow="fold") for heading in ("run", "state"))
    table = plain_table(*foldable, *uncut("ε for a\nhospital", "ε inter-\nmediary"), "metric", "when")
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
    print_table(terminal(), table, optional=("when", "metric"))
    if any(one.epsilon and not one.epsilon["covers_everything"] for one in found):
        say("* ε does not cover everything: `silodp privacy RUN` says what")
    for one in found:
        if one.problem:
            say(one.problem)
