"""The status of a deployment in a terminal: who is connected, both ε, and what needs attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Column

from silodp.cli.tables import make_table, numbers, print_table
from silodp.cli.terminal import console as terminal
from silodp.deploy.page_views import coordinator_view, site_view, when
from silodp.errors import printable

if TYPE_CHECKING:
    from silodp.deploy.coordinator_status import CoordinatorStatus
    from silodp.deploy.status import SiteStatus
    from silodp.report.tables import Table

LATEST = 3  # refusals that are shown


def show_status(status: SiteStatus | CoordinatorStatus) -> None:
    """Prints a short form of the status page; what needs attention comes last, where it is visible."""
    console = terminal()
    if status["kind"] == "site":
        view = site_view(status)
        console.print(f"{status['hospital']}: {view['lead']}")
        console.print(view["spent"])
        if view["runs"]:
            _print(console, view["runs"], ("Last answer", "δ"))
    else:
        view = coordinator_view(status)
        console.print(f"{status['name']} at {status['address']}: {view['lead']}")
        for name, value, remark in view["tiles"]:
            console.print(f"  {name}: {value}" + (f" ({remark})" if remark else ""))
        for sentence in filter(None, (view["against"], view["budget"])):
            console.print(sentence)
        _print(console, view["hospitals"], ("Statement at the end", "Signed the agreement"))
        if status["run"] and status["run"]["absences"]:
            last = status["run"]["absences"][0]
            console.print(f"absent last: {last['hospital']} from round {last['round']}: {last['reason']}")
    for one in status["refusals"][:LATEST]:
        who = f", {one['hospital']}" if one["hospital"] else ""
        console.print(printable(f"refused {when(one['time'])}{who}: {one['reason']}", one_line=True))
    for need in status["needs"]:
        console.print(printable(f"! {need}", one_line=True))
    if not status["needs"]:
        console.print("all is well")


def _print(console: Any, table: Table, optional: tuple[str, ...]) -> None:
    first, *others = table.headings
    drawn = make_table(table.caption, Column(first, overflow="fold"), *numbers(*others))
    for row in table.rows:
        drawn.add_row(*map(str, row))
    print_table(console, drawn, optional)
