"""The records of a run: a line for each round, test results, and what ε does not cover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from silodp.experiment import ResolvedExperiment
from silodp.models.start import IN_WORDS
from silodp.privacy.accountants import Accountant, Epsilon, spent
from silodp.privacy.events import Event
from silodp.runs.schema import (
    Batch,
    CohortFacts,
    EpsilonRecord,
    ModelTest,
    OtherWay,
    RoundRecord,
    StartRecord,
)
from silodp.settings import Rule
from silodp.tasks.scores import Scores, mean_intervals

if TYPE_CHECKING:  # it brings PyTorch along
    from silodp.federation import Round

Metrics = dict[str, float]


def round_record(
    done: Round,
    sizes: Mapping[str, int],
    validation: dict[str, Metrics],
    epsilon: Epsilon,
    seconds: float,
    head: str,
) -> RoundRecord:
    """A line of metrics.jsonl.

    Args:
        done: the round.
        sizes: of the hospitals' training sets.
        validation: metrics by hospital.
        epsilon: spent so far.
        seconds: of the round, validation included.
        head: the ledger's hash of everything up to this round's releases.
    """
    release, unprotected = done.release, done.unprotected
    ratio = unprotected.ratio if unprotected else None
    return {
        "round": done.plan.round,
        "applied": done.applied,
        "intermediaries": done.plan.intermediaries,
        "intermediaries_capped": done.capped,
        "clip_bound": release.clip_bound,
        "noise_std": release.noise_std,
        "xi": ratio.xi if ratio else None,
        "phi": ratio.phi if ratio else None,
        "lambda": ratio.lambda_ if ratio else None,
        "cosine_std": unprotected.cosine_std if unprotected else None,
        "epsilon": epsilon_record(epsilon),
        "train_loss": _mean(unprotected.losses.values()) if unprotected else None,
        "validation": {"mean": mean_metrics(validation), "hospitals": validation},
        "participants": list(done.asked),
        "absent": release.absent,
        "ignored": [list(one) for one in release.ignored],
        "images": sum(sizes[name] for name in done.asked if name not in release.absent),
        "training_seconds": round(done.seconds, 4),
        "seconds": round(seconds, 4),
        "ledger": head,
    }


def epsilon_of(
    experiment: ResolvedExperiment, events: Sequence[Event], accountant: Accountant = "auto"
) -> Epsilon:
    """ε of a run's events, at its own δ."""
    return spent(events, experiment.delta, accountant, experiment.privacy.image_delta)


def epsilon_record(epsilon: Epsilon) -> EpsilonRecord:
    """As the files have it: the same names, in the same order."""
    return cast(EpsilonRecord, asdict(epsilon))


def test_record(
    round_: int, scores: Mapping[str, Scores], batch: Batch, other: tuple[Batch, Mapping[str, Scores]] | None
) -> ModelTest:
    """Test results of a model.

    Args:
        round_: of the model.
        scores: by hospital.
        batch: what the network saw at a time; any: that makes no difference.
        other: the same with another batch, where that makes a difference.
    """
    hospitals = {name: one.values for name, one in scores.items()}
    again: OtherWay | None = None
    if other is not None:
        values = {name: one.values for name, one in other[1].items()}
        again = {"batch": other[0], "mean": mean_metrics(values), "hospitals": values}
    return {
        "round": round_,
        "mean": mean_metrics(hospitals),
        "hospitals": hospitals,
        "intervals": {
            "mean": {name: list(edges) for name, edges in mean_intervals(list(scores.values())).items()},
            "hospitals": {
                hospital: {name: list(edges) for name, edges in one.intervals.items()}
                for hospital, one in scores.items()
            },
        },
        "tried": {name: {"images": one.images, "patients": one.patients} for name, one in scores.items()},
        "batch": batch,
        "other": again,
    }


def mean_metrics(hospitals: Mapping[str, Metrics]) -> Metrics:
    """The plain mean over hospitals, leaving out those for which a metric is not defined; of none, none."""
    names = next(iter(hospitals.values()), {})
    return {name: _mean(metrics[name] for metrics in hospitals.values()) for name in names}


def _mean(values: Any) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def start_record(experiment: ResolvedExperiment) -> StartRecord | None:
    """The origin of the network's initial values; None: they are random."""
    model = experiment.model
    if model.start is None:
        return None
    return {
        "name": Path(model.start).stem,
        "origin": model.start_origin or "unknown",
        "digest": model.start_digest or "",
    }


def not_covered(
    experiment: ResolvedExperiment, epsilon: EpsilonRecord, cohort: CohortFacts | None
) -> list[str]:
    """Lists what ε does not cover.

    Args:
        experiment: of the run.
        epsilon: what was spent.
        cohort: facts about the data; None before the run has written cohort.json.
    """
    deployed = experiment.cohort.kind == "deployed"
    whose = ", of hospitals that let them out" if deployed else ""
    left = "hospitals/, un-noised optimizer moments and secrets of noise"
    if deployed:
        left = "deployment/, contributions as they came and the secret of the noise"
    notes = [
        f"validation and test metrics (metrics.jsonl, summary.json, MODEL_CARD.md){whose}, and the choice of "
        "the best round by them (model-best.safetensors)",
        "the sizes of the training sets, and all of cohort.json",
        f"until the run is over: {left}, and checkpoint.pt, the secret of the draws",
    ]
    hospitals, members = experiment.hospitals, experiment.members
    if members < hospitals:
        notes.append(
            f"the {hospitals - members} of {hospitals} hospitals that do not train: the model is only "
            "validated and tested on their images (participation.members)"
        )
    if cohort and cohort["classes_counted"]:
        notes.append("the number of classes, counted in the hospitals' labels (set cohort.classes)")
    if cohort and not cohort["whole_patients"] and epsilon["hospital"] != epsilon["intermediary"]:
        notes.append(
            "a person: the data name no patients, so one person's images may be in several intermediaries"
        )
    if (start := start_record(experiment)) is not None and start["origin"] != "generated":
        notes.append(f"the start ({start['name']}): trained on {IN_WORDS[start['origin']]}")
    if experiment.cohort.simulated:
        notes.append("real hospitals: those of this run are simulated")
    if deployed and experiment.privacy.noise == "central":
        notes.append("the coordinator, who sees every contribution as it is (privacy.noise = central)")
    if experiment.privacy.noise == "shared":
        notes.append(
            "whoever sees single contributions, as the server does: each has one share of the noise only; "
            "and hospitals that tell their shares, which count as away (privacy.may_stay_away)"
        )
    if experiment.privacy.level == "sample":
        notes.append(
            "a hospital that stays away: ε is for its images counting as nothing while it adds its noise"
        )
    if experiment.privacy.reproducible:
        notes.append("readers who know the seed: they can draw this simulation's noise again")
    if epsilon["amplified"]:
        notes.append("readers who know which hospitals took part when: ε counts on that being secret")
    if experiment.diagnostics:
        notes.append("xi, phi, lambda, cosine_std and train_loss in metrics.jsonl (diagnostics = true)")
    if epsilon["withdrawn"]:
        notes.append(f"an intermediary: {epsilon['withdrawn']}")
    if experiment.is_private:
        rules: tuple[Rule, ...] = (
            experiment.clipping, experiment.intermediaries, experiment.server, experiment.participation
        )  # fmt: skip
        notes += [rule.uncovered for rule in rules if rule.uncovered]
    return notes
