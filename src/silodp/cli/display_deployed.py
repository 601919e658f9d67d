"""What a deployment looks like in a terminal: who is there, both ε, what needs a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from silodp.cli.display import print_table, titled_table
from silodp.cli.terminal import console as terminal
from silodp.deploy.page_views import coordinator_view, site_view, when
from silodp.errors import printable

if TYPE_CHECKING:
    from silodp.deploy.coordinator_status import CoordinatorStatus
    from silodp.deploy.status import SiteStatus
    from silodp.report.tables import Table

LATEST = 3  # refusals


def show_status(status: SiteStatus | CoordinatorStatus) -> None:
    """The page of it in short; what needs a person comes last, where it is seen."""
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
        if view["budget"]:
            console.print(view["budget"])
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


def _print(console: Any, table: Table, may_go: tuple[str, ...]) -> None:
    drawn = titled_table(table.caption)
    for place, heading in enumerate(table.headings):
        drawn.add_column(
            heading, justify="right" if place else "left", overflow="ellipsis" if place else "fold"
        )
    for row in table.rows:
        drawn.add_row(*(cell.text for cell in row))
    print_table(console, drawn, may_go)
