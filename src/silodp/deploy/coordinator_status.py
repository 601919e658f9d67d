"""The status of a coordinator: which hospitals are connected, and the progress and ε of the newest run.

It is read from files, except for one request to the SuperLink: which nodes are connected.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict

from silodp.deploy.config import CoordinatorSettings, coordinator_folder, read_coordinator
from silodp.deploy.roster import ROSTER, Roster, read_roster
from silodp.deploy.status import (
    REFUSALS,
    Against,
    Refusal,
    epsilon_by_adversary,
    epsilon_of,
    read_refusals,
)
from silodp.errors import InputError, printable
from silodp.experiment import ResolvedExperiment
from silodp.files import is_held, read_json
from silodp.privacy.events import Event, Neighbours, Unit
from silodp.privacy.ledger import read_ledger
from silodp.runs.folder import RunFolder, read_experiment
from silodp.runs.places import last_written
from silodp.runs.record import not_covered
from silodp.runs.schema import RoundRecord
from silodp.tasks import task_named

MOST_ABSENCES = 20
LARGEST = 1e12  # number that a hospital can mean
_NAME = 2**12  # bytes of a contribution's first line, which names its hospital

State = Literal["at work", "interrupted", "finished", "stopped"]


class Statement(TypedDict):
    """Numbers of a hospital's signed statement; None where it has none."""

    last_round: int | None
    epsilon: float | None  # against those who see the model
    epsilon_of_all_runs: float | None
    limit: float | None


class HospitalStatus(TypedDict):
    """A hospital of the roster; the last three are of the newest run."""

    name: str
    admitted: bool  # its keys are known
    connected: bool | None  # None: the SuperLink does not answer
    signed: bool
    last_round: str  # its role in the last round
    statement: Statement | None


class Budget(TypedDict):
    epsilon: float
    delta: float
    unit: Unit
    neighbours: Neighbours
    spent: float | None


class RoundStatus(TypedDict):
    """One round; None: no guarantee, or a metric that is not defined or did not come."""

    round: int
    hospital: float | None  # ε up to then
    intermediary: float | None
    mean: float | None  # of the headline metric on validation images
    hospitals: dict[str, float | None]  # the same, of hospitals that let it out


class Absence(TypedDict):
    round: int
    hospital: str
    reason: str


class RunStatus(TypedDict):
    """The newest run in the coordinator's folder."""

    folder: str
    experiment: str
    state: State
    rounds: int  # planned
    done: int
    answered: list[str] | None  # in the current round; None: there is none
    delta: float
    withdrawn: str  # why an intermediary has no ε of its own
    budget: Budget | None
    against: Against  # ε for a hospital, by adversary
    headline: str  # name of the metric
    by_round: list[RoundStatus]
    absences: list[Absence]  # the last ones, newest first
    stopped: str
    not_covered: list[str]
    tells_who_took_part: bool  # ε holds only if that stays secret


class CoordinatorStatus(TypedDict):
    """The coordinator's view; times are seconds since 1970."""

    kind: Literal["coordinator"]
    name: str
    address: str
    superlink: bool  # whether it answers
    hospitals: list[HospitalStatus]
    run: RunStatus | None
    refusals: list[Refusal]  # by hospitals, of all runs, newest first
    needs: list[str]


def coordinator_status(folder: Path) -> CoordinatorStatus:
    """The status of a kit, or of the coordinator's folder in it."""
    place = coordinator_folder(folder)
    settings, roster = read_coordinator(place), read_roster(place / ROSTER)
    online = _online(place, settings, roster)
    path = _newest(place / "runs")
    metrics = RunFolder(path).metrics() if path else []
    status: CoordinatorStatus = {
        "kind": "coordinator",
        "name": settings.name,
        "address": settings.address,
        "superlink": online is not None,
        "hospitals": list(_hospitals(roster, online, path, metrics)),
        "run": _run(path, metrics) if path else None,
        "refusals": read_refusals(place / "log" / REFUSALS),
        "needs": [],
    }
    status["needs"] = list(_needs(status, place, path))
    return status


def _needs(status: CoordinatorStatus, folder: Path, path: Path | None) -> Iterator[str]:
    run, hospitals = status["run"], status["hospitals"]
    if missing := [one["name"] for one in hospitals if not one["admitted"]]:
        yield f"the keys of {', '.join(missing)} are missing; add them with `silodp deploy admit`"
    if not status["superlink"]:
        yield f"its SuperLink does not answer; start it with `silodp deploy coordinator {folder}`"
    if away := [one["name"] for one in hospitals if one["connected"] is False]:
        yield f"not connected: {', '.join(away)}; their links must run and reach {status['address']}"
    if run is None:
        return
    again = f"`silodp deploy run {folder} --resume {path}`"
    if run["state"] == "interrupted":
        yield f"{run['folder']} stopped after round {run['done']} of {run['rounds']}; go on with {again}"
    for absence in run["absences"]:
        if run["state"] == "at work" and absence["round"] == run["done"]:
            yield f"{absence['hospital']} was absent from round {absence['round']}: {absence['reason']}"
    late = [one["name"] for one in hospitals if one["signed"] and one["statement"] is None]
    if run["state"] in ("finished", "stopped") and late:
        yield f"{run['folder']}: no statement has come from {', '.join(late)}; {again} asks again"


def _online(place: Path, settings: CoordinatorSettings, roster: Roster) -> frozenset[str] | None:
    """Names of the connected hospitals; None where the SuperLink does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", settings.port), timeout=2):
            pass
        from silodp.engines.flower.superlink import online  # takes a second to import

        return online(f"127.0.0.1:{settings.port}", place / "ca.crt", roster.nodes)
    except (OSError, InputError):
        return None


def _newest(runs: Path) -> Path | None:
    """The folder of the run that was written to last."""
    return max((file.parent for file in runs.glob("*/experiment.toml")), key=last_written, default=None)


def _run(path: Path, metrics: list[RoundRecord]) -> RunStatus:
    experiment, files = read_experiment(path), RunFolder(path)
    summary, ledger = files.summary(), path / "ledger.jsonl"
    events = tuple(read_ledger(ledger).events) if ledger.exists() else ()
    headline = task_named(experiment.task).headline
    done = metrics[-1]["round"] if metrics else 0
    state: State = "at work" if is_held(path / ".lock") else "interrupted"
    if summary is not None:
        state = "stopped" if summary["stopped"] else "finished"
    absences: list[Absence] = [
        {"round": record["round"], "hospital": name, "reason": reason}
        for record in metrics
        for name, reason in record["absent"].items()
    ]
    epsilon = metrics[-1]["epsilon"] if metrics else None
    return {
        "folder": path.name,
        "experiment": experiment.name,
        "state": state,
        "rounds": experiment.rounds,
        "done": done,
        "answered": _answered(path) if state == "at work" else None,
        "delta": experiment.delta,
        "withdrawn": epsilon["withdrawn"] if epsilon else "",
        "budget": _budget(events, experiment),
        "against": epsilon_by_adversary(
            events, experiment.delta, experiment.privacy.shares(experiment.members)
        ),
        "headline": headline,
        "by_round": [_round(record, headline) for record in metrics],
        "absences": absences[: -MOST_ABSENCES - 1 : -1],
        "stopped": (summary["stopped"] or "") if summary else "",
        "not_covered": not_covered(experiment, epsilon, files.cohort()) if epsilon else [],
        "tells_who_took_part": bool(epsilon and epsilon["amplified"]),
    }


def _round(record: RoundRecord, headline: str) -> RoundStatus:
    epsilon, validation = record["epsilon"], record["validation"]
    return {
        "round": record["round"],
        "hospital": epsilon["hospital"],
        "intermediary": epsilon["intermediary"],
        "mean": validation["mean"].get(headline),
        "hospitals": {name: values.get(headline) for name, values in validation["hospitals"].items()},
    }


def _budget(events: tuple[Event, ...], experiment: ResolvedExperiment) -> Budget | None:
    if (limit := experiment.budget) is None:
        return None
    delta = limit.delta or experiment.delta
    return {
        "epsilon": limit.epsilon,
        "delta": delta,
        "unit": limit.unit,
        "neighbours": limit.neighbours,
        "spent": epsilon_of(events, delta, limit.unit, limit.neighbours),
    }


def _answered(path: Path) -> list[str] | None:
    """Names of the hospitals that have answered the current round; None if there is none."""
    place = path / "deployment" / "round"
    if not (place / "plan").exists() or (place / "closed").exists():
        return None
    names = []
    for file in sorted(place.glob("*.contribution")):
        with open(file, "rb") as content:
            names.append(printable(content.readline(_NAME).rstrip(b"\n").decode("utf-8", "replace")))
    return names


def _hospitals(
    roster: Roster, online: frozenset[str] | None, path: Path | None, metrics: list[RoundRecord]
) -> Iterator[HospitalStatus]:
    signed = _fields(path / "deployment" / "signatures.json") if path else None
    last = metrics[-1] if metrics else None
    for name in (*roster.names, *roster.expected):
        admitted, role = name in roster.names, ""
        if last is not None:
            role = "counted" if name in last["participants"] else "not asked"
            role = f"absent: {last['absent'][name]}" if name in last["absent"] else role
        yield {
            "name": name,
            "admitted": admitted,
            "connected": None if online is None or not admitted else name in online,
            "signed": name in (signed or ()),
            "last_round": role,
            "statement": _statement(path / "deployment" / "statements" / f"{name}.json") if path else None,
        }


def _fields(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object; None where there is none."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _statement(path: Path) -> Statement | None:
    """Reads a file that a hospital wrote; anything but a number becomes None."""

    def number(value: object) -> float | None:
        plain = type(value) in (int, float) and -LARGEST < value < LARGEST  # type: ignore[operator]
        return float(value) if plain else None  # type: ignore[arg-type]

    if (fields := _fields(path)) is None:
        return None
    seen, last = fields.get("epsilon"), number(fields.get("last_round"))
    return {
        "last_round": None if last is None else int(last),
        "epsilon": number(seen.get("outside")) if isinstance(seen, dict) else None,
        "epsilon_of_all_runs": number(fields.get("epsilon_of_all_runs")),
        "limit": number(fields.get("limit")),
    }
