"""What the live pages say, from a status: tiles, tables, charts and sentences in plain words."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from silodp.deploy.coordinator_status import CoordinatorStatus, HospitalStatus, RunStatus
from silodp.deploy.status import Refusal, SiteStatus
from silodp.report.chart import is_empty, known
from silodp.report.curves import headline_chart, spending_chart
from silodp.report.frame import Tile
from silodp.report.metric import metric, shown
from silodp.report.tables import Cell, Table
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
    "interrupted": "stands still: no process is at work on it",
    "finished": "is finished",
    "stopped": "was ended by its budget",
}


def when(seconds: float | None) -> str:
    """A moment as people write it, in this machine's time."""
    try:
        return "–" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "–"


def coordinator_view(status: CoordinatorStatus) -> dict[str, Any]:
    """What coordinator.html needs."""
    run, hospitals = status["run"], status["hospitals"]
    view: dict[str, Any] = {
        "needs": status["needs"],
        "lead": "No run has begun yet.",
        "tiles": [_connected(hospitals, status["superlink"])],
        "progress": None,
        "charts": [],
        "missing": [],
        "budget": "",
        "against": "",
        "hospitals": _hospitals(hospitals),
        "absences": [],
        "refusals": _refusals(status["refusals"]),
        "shown": [],
    }
    return view | _of_run(run, hospitals, view["tiles"]) if run else view


def _of_run(run: RunStatus, hospitals: list[HospitalStatus], tiles: list[Tile]) -> dict[str, Any]:
    last = run["by_round"][-1] if run["by_round"] else None
    name, done, planned = metric(run["headline"]).name, run["done"], run["rounds"]
    more: list[Tile] = [("Rounds", str(done), f"of {planned}")]
    for unit in ("hospital", "intermediary"):
        spent = last[unit] if last else 0.0
        remark = f"as a formal promise: {strength(spent)}; δ {run['delta']:g}"
        if unit == "intermediary" and run["withdrawn"]:
            remark = "the hospital's: v changed"
        more.append((f"ε for a{'n' * (unit == 'intermediary')} {unit}", show_epsilon(spent), remark))
    figures = last is not None and bool(last["hospitals"])
    if last and figures:
        told, every = len(last["hospitals"]), len(hospitals)
        whose = "mean over hospitals" if told == every else f"mean over the {told} of {every} that let it out"
        more.append((f"{name} on validation images", shown(last["mean"]), whose))
    shown_here = ["which hospital was absent when"]
    if any(one["hospitals"] for one in run["by_round"]):
        shown_here.insert(0, f"{name} on validation images, by hospital")
    if run["tells_who_took_part"]:
        shown_here.append("who took part in the last round, which its ε counts on nobody knowing")
    charts, missing = _charts(run)
    return {
        "lead": f"«{run['experiment']}» ({run['folder']}) {STATES[run['state']]}."
        + (f" {run['stopped']}" if run["stopped"] else ""),
        "tiles": [*more, *tiles],
        "progress": done / planned,
        "progress_label": f"{done} of {several(planned, 'round')} done",
        "under_way": _under_way(run),
        "charts": charts,
        "missing": missing,
        "against": adversaries_in_words(**run["against"]) if run["by_round"] else "",
        "absences": run["absences"],
        "shown": shown_here,
        "not_covered": run["not_covered"],
    } | _budget(run)


def _budget(run: RunStatus) -> dict[str, Any]:
    budget, limit = run["budget"], _limit(run)
    if budget is None or limit is None:
        return {"budget": ""}
    return {
        "budget": budget_in_words(limit, budget["spent"]),
        "budget_share": or_infinite(budget["spent"]) / budget["epsilon"],
    }


def _limit(run: RunStatus) -> BudgetSettings | None:
    if (budget := run["budget"]) is None:
        return None
    return BudgetSettings(
        epsilon=budget["epsilon"], delta=budget["delta"], unit=budget["unit"], neighbours=budget["neighbours"]
    )


def _under_way(run: RunStatus) -> str:
    if run["answered"] is None:
        return ""
    names = ", ".join(run["answered"])
    return f"round {run['done'] + 1} is under way, answered so far by {names or 'nobody'}"


def _charts(run: RunStatus) -> tuple[list[Any], list[str]]:
    """The metric and both ε over rounds; a sentence for a curve that cannot be drawn."""
    rounds = run["by_round"]
    if not rounds:
        return [], []
    charts, missing = [], []
    names = list(dict.fromkeys(name for one in rounds for name in one["hospitals"]))
    mean = known((one["round"], one["mean"]) for one in rounds)
    each = {name: known((one["round"], one["hospitals"].get(name)) for one in rounds) for name in names}
    if is_empty(chart := headline_chart(run["headline"], mean, each)):
        name = metric(run["headline"]).name
        missing.append(f"No hospital lets its figures out, so {name} has no curve.")
    else:
        charts.append(chart)
    spent = [(one["round"], one["hospital"], one["intermediary"]) for one in rounds]
    epsilon = spending_chart(spent, run["delta"], _limit(run), withdrawn=bool(run["withdrawn"]))
    if epsilon is None:
        missing.append("No ε is finite and above zero, so it has no curve.")
    else:
        charts.append(epsilon)
    return charts, missing


def _connected(hospitals: list[HospitalStatus], superlink: bool) -> Tile:
    count = sum(one["connected"] is True for one in hospitals)
    said = f"of {len(hospitals)}" if superlink else "the SuperLink does not answer"
    return ("Hospitals connected", str(count) if superlink else "–", said)


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
            connected if one["admitted"] else "its keys are missing",
            "yes" if one["signed"] else "–",
            one["last_round"].partition(":")[0] or "–",
            text,
        )
        rows.append((Cell(one["name"]), *map(Cell, cells)))
    headings = ("Hospital", "Connected", "Signed the agreement", "In the last round", "Statement at the end")
    return Table("The hospitals of the roster", headings, tuple(rows))


def _refusals(refusals: Iterable[Refusal]) -> list[dict[str, str]]:
    return [
        {
            "when": when(one["time"]),
            "who": one["hospital"],
            "asked": ASKED.get(one["asked"], one["asked"]),
            "reason": one["reason"],
        }
        for one in refusals
    ]


def site_view(status: SiteStatus) -> dict[str, Any]:
    """What site.html needs."""
    limits, runs, heard = status["limits"], status["runs"], status["heard"]
    spent, limit = show_epsilon(status["epsilon"]), limits["epsilon"]
    at = f" at δ = {status['delta']:g}" if status["delta"] else ""
    lead = "The site is running." if status["running"] else "The site is not running."
    if heard:
        what = ASKED.get(heard["asked"], heard["asked"])
        lead += f" The coordinator was last heard at {when(heard['time'])}: this hospital was {what}."
    else:
        lead += " The coordinator has not been heard yet."
    tiles: list[Tile] = [
        ("ε spent by this hospital", spent, f"of {limit:,g}, over all runs"),
        ("Runs", str(len(runs)), "agreed to"),
        ("Rounds answered", str(sum(run["last_round"] for run in runs)), ""),
    ]
    return {
        "needs": status["needs"],
        "lead": lead,
        "tiles": tiles,
        "spent": f"ε = {spent} of {limit:,g} is spent{at}, over {several(len(runs), 'run')}.",
        "share": or_infinite(status["epsilon"]) / limit,
        "limits": [(name, "none" if value is None else str(value)) for name, value in limits.items()],
        "runs": _runs(status) if runs else None,
        "refusals": _refusals(status["refusals"]),
        "figures": limits["validation_metrics"],
        "leaves": _leaves(status),
        "uncovered": _uncovered(status),
    }


def _runs(status: SiteStatus) -> Table:
    rows = []
    for run in status["runs"]:
        seen = run["epsilon"]
        cells = (
            f"{run['last_round']} of {run['rounds']}",
            *map(show_epsilon, (seen["outside"], seen["coordinator"], seen["another_hospital"])),
            f"{run['delta']:g}",
            when(run["answered"]),
        )
        rows.append((Cell(f"{run['experiment']} ({run['run'][:8]})"), *map(Cell, cells)))
    headings = (
        "Run", "Rounds answered", "ε against: outside", "coordinator", "another hospital", "δ", "Last answer",
    )  # fmt: skip
    return Table("Runs, and ε of this hospital in each", headings, tuple(rows))


def _leaves(status: SiteStatus) -> list[str]:
    leaves = [
        "Before a run: how many images it has in each part, their size and kind, how many classes or masks, "
        "and into how many parts they could be split.",
        "In a round: one vector, as long as the model, cut to the agreed length and signed.",
        "At the end: a signed statement with this hospital's ε and its limit.",
        "Whenever it refuses: the reason.",
    ]
    if status["limits"]["validation_metrics"]:
        leaves.append(
            "Validation and test figures of the models of a run (limits.validation_metrics = true). "
            "No ε covers them."
        )
    return leaves


def _uncovered(status: SiteStatus) -> list[str]:
    notes = [
        "How many images this hospital has, and the other facts that leave before a run.",
        "That this hospital is a member: the coordinator and the other members know it.",
    ]
    if any(run["epsilon"]["coordinator"] is None for run in status["runs"] if run["last_round"]):
        notes.append(
            "The coordinator: in a run with ∞ above it sees this hospital's contributions as they are."
        )
    if status["limits"]["validation_metrics"]:
        notes.append("Validation and test figures, which this hospital lets out.")
    if status["limits"]["seeded_noise"]:
        notes.append(
            "Whoever knows the seed, if a run draws its noise from one (limits.seeded_noise = true): that is "
            "for rehearsals."
        )
    return notes
