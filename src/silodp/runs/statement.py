"""The privacy statement of a run: its ledger, verified against the experiment, and its ε.

Reading changes nothing, so it also works on a run in progress.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silodp.errors import InputError
from silodp.experiment import ResolvedExperiment
from silodp.privacy.accountants import Accountant, EpsilonBound, as_dict, epsilon_bounds, spent
from silodp.privacy.adversaries import Adversaries, against
from silodp.privacy.events import Event, Neighbours, Unit, hospital_noise_multiplier
from silodp.privacy.ledger import read_ledger
from silodp.releases import Releases, build_budget
from silodp.runs.consistency import conflicts, read_run_files
from silodp.runs.folder import RunFolder, read_experiment
from silodp.runs.record import epsilon_of, epsilon_record, not_covered, start_record
from silodp.runs.schema import CohortFile, EpsilonRecord


@dataclass(frozen=True)
class Statement:
    """What a run has released and what that costs.

    Attributes:
        figures: ε by unit and neighbouring relation, each with its accountant.
        by_round: (round, ε for a hospital, ε for an intermediary) along the way, add-or-remove.
        releases: protected events.
        unprotected: what was used without noise, by name: no figure covers it.
        redone: rounds that were released more than once, with other noise, after a crash.
        torn: whether the last line is incomplete (after a crash, or during a run); it is left out.
        problems: missing or unexpected entries of the ledger; empty where there are none.
    """

    folder: Path
    experiment: ResolvedExperiment
    delta: float
    rounds: int
    releases: int
    figures: dict[tuple[Unit, Neighbours], EpsilonBound]
    by_round: list[tuple[int, float, float]]
    unprotected: tuple[str, ...]
    redone: tuple[int, ...]
    torn: bool
    problems: tuple[str, ...]
    intermediaries: tuple[int, int]  # fewest and most
    hospital_multipliers: tuple[float, float]  # least and most of a round, for a whole hospital
    budget_spent: float | None  # ε at the budget's δ, for its unit and neighbours
    not_covered: tuple[str, ...]  # what ε does not cover
    epsilon: EpsilonRecord  # both ε, as in summary.json
    seen_from: Adversaries | None  # ε of a hospital by adversary, where it differs

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        budget, private = self.experiment.budget, self.experiment.privacy
        return {
            "folder": str(self.folder),
            "rounds": self.rounds,
            "planned_rounds": self.experiment.rounds,
            "hospitals": self.experiment.hospitals,
            "members": self.experiment.members,
            "simulated": self.experiment.cohort.simulated,
            "intermediaries": {"fewest": self.intermediaries[0], "most": self.intermediaries[1]},
            "noise_multiplier": private.noise_multiplier,
            "hospital_noise_multiplier": dict(zip(("least", "most"), self.hospital_multipliers, strict=True)),
            "delta": self.delta,
            **as_dict(self.figures),
            "image_epsilon": self.epsilon["image"],
            "seen_from": vars(self.seen_from) if self.seen_from else None,
            "covers_everything": not self.unprotected,
            "unprotected": list(self.unprotected),
            "start": start_record(self.experiment),
            "not_covered_by_epsilon": list(self.not_covered),
            "budget": budget.model_dump() | {"spent": self.budget_spent} if budget else None,
            "releases": self.releases,
            "redone": list(self.redone),
            "torn": self.torn,
            "problems": list(self.problems),
            "by_round": [
                {"round": number, "hospital": hospital, "intermediary": intermediary}
                for number, hospital, intermediary in self.by_round
            ],
        }


def read_statement(folder: Path, accountant: Accountant = "auto") -> Statement:
    """Reads the ledger of a run; raises InputError where a line was changed or none can be read."""
    experiment = read_experiment(folder)
    files = read_run_files(folder)  # before the ledger, which only grows: a run at work is never ahead of it
    path = folder / "ledger.jsonl"
    if not path.is_file():
        raise InputError(f"{path}: the ledger is missing; restore the file")
    reading = read_ledger(path)
    events, delta, budget = reading.events, experiment.delta, build_budget(experiment)
    released = [event for event in events if event.protected]
    parts = [event.contributions for event in released if event.part == "intermediary"] or [1]
    rounds = max((event.round for event in events), default=0)
    epsilon = epsilon_record(epsilon_of(experiment, events, accountant))
    finished = {line["round"] for line in files.metrics}
    cohort = RunFolder(folder).cohort()
    return Statement(
        folder=folder,
        experiment=experiment,
        delta=delta,
        rounds=rounds,
        releases=len(released),
        figures=epsilon_bounds(events, delta, accountant),
        by_round=_along_the_way(events, delta, rounds),
        unprotected=tuple(dict.fromkeys(event.released for event in events if not event.protected)),
        redone=_redone(events),
        torn=reading.torn,
        problems=(
            *_problems(experiment, events, finished, _sizes(experiment, cohort)),
            *conflicts(files, events, reading.chains),
        ),
        intermediaries=(min(parts), max(parts)),
        hospital_multipliers=_hospital_multipliers(released),
        epsilon=epsilon,
        seen_from=_seen_from(experiment, released),
        budget_spent=budget.cost(events) if budget else None,
        not_covered=tuple(not_covered(experiment, epsilon, cohort)),
    )


def _seen_from(experiment: ResolvedExperiment, released: Sequence[Event]) -> Adversaries | None:
    """ε by adversary, for shared noise and for deployments; None for simulations without either."""
    private = experiment.privacy
    if private.level == "sample" or (private.noise == "central" and experiment.cohort.kind != "deployed"):
        return None
    return against(released, experiment.delta, private.shares(experiment.members))


def _along_the_way(events: Sequence[Event], delta: float, rounds: int) -> list[tuple[int, float, float]]:
    sampled = any(event.sampling_rate < 1 for event in events)
    count = min(rounds, 12 if sampled else 48)  # amplification takes time to compute
    chosen = sorted({min(1, rounds), *(math.ceil(rounds * (number + 1) / count) for number in range(count))})
    return [
        (number, epsilon.hospital, epsilon.intermediary)
        for number in chosen
        for epsilon in [spent([event for event in events if event.round <= number], delta)]
    ]


def _hospital_multipliers(released: Sequence[Event]) -> tuple[float, float]:
    multipliers = [hospital_noise_multiplier(found) for found in _by_round(released).values()] or [0.0]
    return min(multipliers), max(multipliers)


def _by_round(events: Sequence[Event]) -> dict[int, list[Event]]:
    rounds: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        rounds[event.round].append(event)
    return rounds


def _redone(events: Sequence[Event]) -> tuple[int, ...]:
    updates = Counter(event.round for event in events if event.released == "model update")
    return tuple(sorted(number for number, times in updates.items() if times > 1))


def _problems(
    experiment: ResolvedExperiment, events: Sequence[Event], finished: set[int], sizes: Sequence[int]
) -> Iterator[str]:
    """Whether every round is there, in order, with all that the experiment releases in a round.

    The last round may be half written: a crash or a run at work, before anything of it was used.
    """
    reached = 0
    for event in events:
        if event.round > reached + 1:
            missing = range(reached + 1, event.round)
            named = ", ".join(map(str, missing)) if len(missing) <= 20 else f"{missing[0]} to {missing[-1]}"
            yield f"missing before round {event.round}: {named}"
        reached = max(reached, event.round)
    if reached > experiment.rounds:
        yield f"round {reached} is beyond the {experiment.rounds} rounds of the experiment"
    releases = Releases.of(experiment, sizes or [2] * experiment.members)
    for number, found in _by_round(events).items():
        measures = experiment.is_private and experiment.intermediaries.reads(number)
        complete = number in finished or number < reached
        planned = releases.events(number, found[0].contributions, None, measures)
        for text in _unlike_the_plan(planned, found, complete, sized=bool(sizes)):
            yield f"round {number}: {text}"


def _sizes(experiment: ResolvedExperiment, cohort: CohortFile | None) -> list[int]:
    """Of the training sets of those who train, as cohort.json says; empty where it is not there."""
    sizes = [hospital["train"]["images"] for hospital in cohort["hospitals"].values()] if cohort else []
    return list(experiment.participation.training(sizes))


def _unlike_the_plan(
    planned: Sequence[Event], found: Sequence[Event], complete: bool, sized: bool
) -> Iterator[str]:
    """What the mechanism would have written for a round, compared with what stands there.

    `sized`: the sizes of the training sets are known, which the steps of DP-SGD at the hospitals follow from.
    """
    for wanted in planned:
        same = [event for event in found if event.released == wanted.released]
        if not same and complete:
            yield f"the event «{wanted.released}» is missing"
        for event in same:
            fits = (
                event.protected == wanted.protected
                and math.isclose(event.noise_multiplier, wanted.noise_multiplier, rel_tol=1e-9)
                and (event.participation, event.part) == (wanted.participation, wanted.part)
                and math.isclose(event.sampling_rate, wanted.sampling_rate, rel_tol=1e-9)
            )
            if sized:
                counts = ("contributions", "steps", "passes")
                fits &= all(getattr(event, name) == getattr(wanted, name) for name in counts)
            if not fits:
                yield f"«{event.released}» is not what the experiment asks for"
