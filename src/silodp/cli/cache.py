"""`silodp cache`: show or clear the cache of decoded images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silodp.cli.terminal import say


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="As cohort.cache; default: that of this user.")
    ] = None,
) -> None:
    """Show which decoded images the cache holds and for which files, or clear it."""
    from silodp.cohorts.cache import clear as clear_cache
    from silodp.cohorts.cache import entries
    from silodp.files import default_cache

    place = (folder or default_cache()).expanduser()
    found = clear_cache(place) if clear else entries(place)
    for entry in found:
        say(f"{entry.bytes / 1e6:10,.1f} MB  {entry.what}; for {', '.join(entry.paths) or 'unknown files'}")
    total = f"{len(found)} entries, {sum(entry.bytes for entry in found) / 1e6:,.1f} MB"
    if clear:
        say(f"{place}: removed {total}; files are decoded again when they are next needed")
    else:
        say(f"{place}: {total}" + ("; `silodp cache --clear` removes them" if found else ""))
