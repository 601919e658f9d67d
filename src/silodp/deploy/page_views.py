"""What the live pages and `silodp deploy status` show of a status: tiles, tables and charts."""

from __future__ import annotations

import time
from typing import Any

from silodp.deploy.coordinator_status import CoordinatorStatus, HospitalStatus, RunStatus
from silodp.deploy.status import SiteStatus
from silodp.report.chart import Chart, is_empty, known
from silodp.report.curves import headline_chart, spending_chart
from silodp.report.frame import Tile
from silodp.report.metric import metric, shown
from silodp.report.tables import Table
from silodp.report.words import several
from silodp.runs.promise import adversaries_in_words, budget_in_words, strength
from silodp.runs.schema import or_infinite
from silodp.runs.wording import show_epsilon
from silodp.settings import BudgetSettings

ASKED = {
    "facts": "asked what its data are like",
    "agree": "asked to sign an agreement",
    "plan": "asked for a round",
    "evaluate": "asked for figures of a model",
    "finish": "asked for its statement",
}
STATES = {
    "at work": "is training",
    "interrupted": "is interrupted: no process is running it",
    "finished": "is finished",
    "stopped": "was ended by its budget",
}


def when(seconds: float | None) -> str:
    """Formats a time in this machine's time zone; "–" for None."""
    try:
        return "–" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "–"


def coordinator_view(status: CoordinatorStatus) -> dict[str, Any]:
    """What coordinator.html needs beside the status itself."""
    run, hospitals = status["run"], status["hospitals"]
    count = sum(one["connected"] is True for one in hospitals)
    connected = ("Hospitals connected", str(count), f"of {len(hospitals)}")
    if not status["superlink"]:
        connected = ("Hospitals connected", "–", "the SuperLink does not answer")
    view: dict[str, Any] = {"hospitals": _hospitals(hospitals), "tiles": [connected]}
    if run is None:
        return view | {"lead": "No run has begun yet.", "against": "", "budget": "", "charts": []}
    budget = run["budget"]
    settings = {name: value for name, value in budget.items() if name != "spent"} if budget else None
    limit = BudgetSettings.model_validate(settings) if settings else None
    charts, missing = _charts(run, limit)
    return view | {
        "lead": f"«{run['experiment']}» ({run['folder']}) {STATES[run['state']]}."
        + (f" {run['stopped']}" if run["stopped"] else ""),
        "tiles": [*_tiles(run, len(hospitals)), connected],
        "charts": charts,
        "missing": missing,
        "against": adversaries_in_words(**run["against"]) if run["by_round"] else "",
        "budget": budget_in_words(limit, budget["spent"]) if limit and budget else "",
        "budget_share": or_infinite(budget["spent"]) / budget["epsilon"] if budget else 0,
        "metric": metric(run["headline"]).name if any(one["hospitals"] for one in run["by_round"]) else "",
    }


def _tiles(run: RunStatus, hospitals: int) -> list[Tile]:
    last = run["by_round"][-1] if run["by_round"] else None
    spent = {"a hospital": last["hospital"], "an intermediary": last["intermediary"]} if last else {}
    tiles: list[Tile] = [("Rounds", str(run["done"]), f"of {run['rounds']}")]
    for unit in ("a hospital", "an intermediary"):
        value = spent.get(unit, 0.0)
        remark = f"as a formal promise: {strength(value)}; δ {run['delta']:g}"
        if unit == "an intermediary" and run["withdrawn"]:
            remark = "the hospital's: v changed"
        tiles.append((f"ε for {unit}", show_epsilon(value), remark))
    if last and last["hospitals"]:
        told = len(last["hospitals"])
        of = "" if told == hospitals else f"the {told} of {hospitals} that let it out"
        name = f"{metric(run['headline']).name} on validation images"
        tiles.append((name, shown(last["mean"]), f"mean over {of or 'hospitals'}"))
    return tiles


def _charts(run: RunStatus, limit: BudgetSettings | None) -> tuple[list[Chart], list[str]]:
    """Charts of the metric and both ε over rounds, and a sentence for each that cannot be drawn."""
    rounds = run["by_round"]
    if not rounds:
        return [], []
    names = list(dict.fromkeys(name for one in rounds for name in one["hospitals"]))
    mean = known((one["round"], one["mean"]) for one in rounds)
    each = {name: known((one["round"], one["hospitals"].get(name)) for one in rounds) for name in names}
    figures = headline_chart(run["headline"], mean, each)
    spent = [(one["round"], one["hospital"], one["intermediary"]) for one in rounds]
    epsilon = spending_chart(spent, run["delta"], limit, withdrawn=bool(run["withdrawn"]))
    missing = []
    if is_empty(figures):
        missing.append(f"No hospital lets its figures out, so {metric(run['headline']).name} has no curve.")
    if epsilon is None:
        missing.append("No ε is finite and above zero, so it has no curve.")
    return [chart for chart in (figures, epsilon) if chart is not None and not is_empty(chart)], missing


def _hospitals(hospitals: list[HospitalStatus]) -> Table:
    rows = []
    for one in hospitals:
        connected = {True: "yes", False: "no", None: "–"}[one["connected"]]
        statement, text = one["statement"], "–"
        if statement is not None:
            text = f"signed; ε {show_epsilon(statement['epsilon'])}"
            if statement["limit"] is not None:
                spent = show_epsilon(statement["epsilon_of_all_runs"])
                text += f", {spent} of its {statement['limit']:,g} in all"
        cells = (
            one["name"],
            connected if one["admitted"] else "its keys are missing",
            "yes" if one["signed"] else "–",
            one["last_round"].partition(":")[0] or "–",
            text,
        )
        rows.append(cells)
    headings = ("Hospital", "Connected", "Signed the agreement", "In the last round", "Statement at the end")
    return Table("The hospitals of the roster", headings, rows)


def site_view(status: SiteStatus) -> dict[str, Any]:
    """What site.html needs beside the status itself."""
    limit, runs, heard = status["limits"]["epsilon"], status["runs"], status["heard"]
    spent = show_epsilon(status["epsilon"])
    at = f" at δ = {status['delta']:g}" if status["delta"] else ""
    lead = "The site is running." if status["running"] else "The site is not running."
    if heard:
        what = ASKED.get(heard["asked"], heard["asked"])
        lead += f" The coordinator was last heard at {when(heard['time'])}: this hospital was {what}."
    else:
        lead += " The coordinator has not been heard yet."
    return {
        "lead": lead,
        "tiles": [
            ("ε spent by this hospital", spent, f"of {limit:,g}, over all runs"),
            ("Runs", str(len(runs)), "agreed to"),
            ("Rounds answered", str(sum(run["last_round"] for run in runs)), ""),
        ],
        "spent": f"ε = {spent} of {limit:,g} is spent{at}, over {several(len(runs), 'run')}.",
        "share": or_infinite(status["epsilon"]) / limit,
        "runs": _runs(status) if runs else None,
        "coordinator_sees": any(run["epsilon"]["coordinator"] is None for run in runs if run["last_round"]),
    }


def _runs(status: SiteStatus) -> Table:
    rows = []
    for run in status["runs"]:
        seen = run["epsilon"]
        cells = (
            f"{run['experiment']} ({run['run'][:8]})",
            f"{run['last_round']} of {run['rounds']}",
            *map(show_epsilon, (seen["outside"], seen["coordinator"], seen["another_hospital"])),
            f"{run['delta']:g}",
            when(run["answered"]),
        )
        rows.append(cells)
    headings = (
        "Run", "Rounds answered", "ε against: outside", "coordinator", "another hospital", "δ", "Last answer",
    )  # fmt: skip
    return Table("Runs, and ε of this hospital in each", headings, rows)
