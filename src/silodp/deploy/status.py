"""The status of a hospital's site, read from its folder; nothing is changed, and PyTorch is not needed.

A status is a dict for JSON without secrets; `needs` lists what a person has to do.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12

from silodp.deploy.config import read_site
from silodp.deploy.last_answer import last_round
from silodp.errors import InputError, printable
from silodp.experiment import Experiment
from silodp.files import as_record, is_held, parse_json, read_json, read_text
from silodp.privacy.accountants import epsilon_bound
from silodp.privacy.adversaries import against
from silodp.privacy.events import Event, Neighbours, Unit
from silodp.privacy.ledger import read_ledger

HEARD, REFUSALS = "heard.json", "refusals.jsonl"
MOST_REFUSALS = 20
_TAIL = 2**17  # bytes of the list of refusals that are read


class Refusal(TypedDict):
    """A refusal; at a coordinator also by which hospital, and what it was asked."""

    time: float
    reason: str
    hospital: str
    asked: str


class Heard(TypedDict):
    """The last request that carried the coordinator's signature."""

    time: float
    asked: str
    run: str


class Against(TypedDict):
    """ε of a whole hospital by adversary; None: no guarantee."""

    outside: float | None
    coordinator: float | None
    another_hospital: float | None


class SiteRun(TypedDict):
    """A run that the site has signed an agreement for."""

    run: str
    experiment: str
    rounds: int  # planned
    last_round: int  # answered
    epsilon: Against
    delta: float
    agreed: float
    answered: float | None  # when


class SiteStatus(TypedDict):
    """A hospital's own view; times are seconds since 1970."""

    kind: Literal["site"]
    hospital: str
    running: bool  # whether a process holds its ledger
    heard: Heard | None
    epsilon: float | None  # over all runs; None: no guarantee
    delta: float | None  # of that ε; None before there is one
    releases: int
    limits: dict[str, Any]
    runs: list[SiteRun]
    refusals: list[Refusal]  # the last ones, newest first
    needs: list[str]


def site_status(folder: Path) -> SiteStatus:
    """The status of a hospital's folder, which holds site.toml and state/."""
    settings, state = read_site(folder), folder / "state"
    limits, ledger = settings.limits, state / "ledger.jsonl"
    try:
        events = read_ledger(ledger).events if ledger.exists() else []
        places = sorted((state / "runs").glob("*/agreement.json"))
        runs = [_run(path.parent, events) for path in places]
        runs.sort(key=lambda run: run["agreed"], reverse=True)
        refusals = read_refusals(state / REFUSALS)
        heard = _heard(state / HEARD)
        running = is_held(ledger)
    except PermissionError as error:
        raise InputError(
            f"{error.filename}: only its owner may read it; run this as the user that the site runs as"
        ) from None
    delta = limits.delta or min((run["delta"] for run in runs), default=None)  # as the site does
    spent = epsilon_of(tuple(events), delta, "hospital", "add-or-remove") if delta and events else 0.0
    status: SiteStatus = {
        "kind": "site",
        "hospital": settings.name,
        "running": running,
        "heard": heard,
        "epsilon": spent,
        "delta": delta,
        "releases": len(events),
        "limits": limits.model_dump(mode="json"),
        "runs": runs,
        "refusals": refusals,
        "needs": [],
    }
    status["needs"] = list(_needs(status))
    return status


def _needs(status: SiteStatus) -> list[str]:
    needs = []
    if not status["running"]:
        needs.append("its site is not running; start it with `silodp deploy hospital`")
    if status["epsilon"] is None or status["epsilon"] >= status["limits"]["epsilon"] * (1 - 1e-9):
        needs.append("all of limits.epsilon is spent; this hospital answers no further round")
    answered = max((run["answered"] or run["agreed"] for run in status["runs"]), default=0.0)
    if status["refusals"] and (last := status["refusals"][0])["time"] > answered:
        needs.append(f"its last reply was a refusal: {last['reason']}")
    return needs


def events_of_run(place: Path, events: Sequence[Event]) -> tuple[Event, ...]:
    """The events of one run; the file `plans` beside its agreement lists their digests."""
    path = place / "plans"
    plans = set(read_text(path).split()) if path.exists() else set()
    return tuple(event for event in events if event.digest in plans)


def _run(place: Path, events: Sequence[Event]) -> SiteRun:
    path = place / "agreement.json"
    try:
        agreement = read_json(path)
        experiment = Experiment(**tomllib.loads(agreement["experiment"]))
        shares = experiment.privacy.shares(len(agreement["facts"]))
        delta, run = float(agreement["delta"]), str(agreement["run"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: damaged; restore it, or let this hospital leave the run") from None
    mine = events_of_run(place, events)
    answered = place / "answered"
    return {
        "run": run,
        "experiment": experiment.name,
        "rounds": experiment.rounds,
        "last_round": last_round(answered),
        "epsilon": epsilon_by_adversary(mine, delta, shares),
        "delta": delta,
        "agreed": path.stat().st_mtime,
        "answered": answered.stat().st_mtime if answered.exists() else None,
    }


def read_refusals(path: Path) -> list[Refusal]:
    """The last refusals in a file with one a line, newest first; other lines are skipped."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read(_TAIL).splitlines()
    found: list[Refusal] = []
    for line in reversed(lines):
        try:
            fields = parse_json(line)
            texts = [
                printable(fields.get(name, ""), one_line=True) for name in ("reason", "hospital", "asked")
            ]
            time = float(fields["time"])
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        found.append({"time": time, "reason": texts[0], "hospital": texts[1], "asked": texts[2]})
    return found[:MOST_REFUSALS]


def _heard(path: Path) -> Heard | None:
    try:
        return as_record(Heard, read_json(path))
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=64)  # a page asks every other second, and ε changes once a round
def epsilon_by_adversary(events: tuple[Event, ...], delta: float, shares: int) -> Against:
    """ε against each adversary, cached: do not change the dict. `shares`: see `PrivacySettings`."""
    seen = vars(against(events, delta, shares))
    return cast(Against, {adversary: finite(epsilon) for adversary, epsilon in seen.items()})


@lru_cache(maxsize=64)
def epsilon_of(events: tuple[Event, ...], delta: float, unit: Unit, neighbours: Neighbours) -> float | None:
    """ε of releases; None: no guarantee."""
    return finite(epsilon_bound(events, delta, unit, neighbours).epsilon) if events else 0.0


def finite(value: float) -> float | None:
    """None for an infinite ε, which JSON does not have."""
    return value if math.isfinite(value) else None
