"""What a site checks against its limits and its agreement before it answers a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from silodp.deploy.agreement import Agreement
from silodp.deploy.limits import LARGEST_DELTA, Limits
from silodp.errors import InputError
from silodp.experiment import Experiment, ResolvedExperiment
from silodp.messages import RoundPlan
from silodp.privacy.accountants import hospital_epsilon
from silodp.privacy.adversaries import against
from silodp.privacy.events import Event
from silodp.runs.parts import Public
from silodp.server_optimizers import DP2_EPSILON

SMALLEST_BOUND = 1e-20  # of C; far below it single precision is not exact enough


def as_counted_by_site(events: Sequence[Event], plan: str = "") -> list[Event]:
    """Events as a hospital counts them: it knows when it took part, and plans do not share events.

    Args:
        events: of one or more rounds.
        plan: the digest that replaces theirs; default: they keep it.
    """
    return [
        replace(event, participation="all", sampling_rate=1.0, digest=plan or event.digest)
        for event in events
    ]


def refuse_releases_beyond_limits(
    limits: Limits,
    before: Sequence[Event],
    new: Sequence[Event],
    delta: float,
) -> None:
    """Refuses releases that the limits do not allow.

    Args:
        limits: of the hospital.
        before: events in the site's ledger.
        new: events to be added, from `as_counted_by_site`.
        delta: used where the limits name no δ.
    """
    own_delta = limits.delta or delta
    if limits.delta is None and delta > LARGEST_DELTA:
        raise InputError(
            f"limits.delta: the agreement's δ is {delta:g}; this hospital allows {LARGEST_DELTA}"
        )
    for event in new:
        parts = event.contributions if event.part == "intermediary" else 1
        if parts > limits.intermediaries_at_most:
            raise InputError(
                f"limits.intermediaries_at_most = {limits.intermediaries_at_most}: v = {parts} is asked for"
            )
        if not event.protected:
            raise InputError(f"limits: «{event.released}» would be used without noise")
        least, own = limits.noise_multiplier_at_least, 1 / event.hospital_mu
        if least is not None and own < least * (1 - 1e-9):
            raise InputError(
                f"limits.noise_multiplier_at_least = {least:g}: {own:.4g} for a hospital is asked for"
            )
        most, bound = limits.clip_bound_at_most, event.clip_bound or math.inf
        if most is not None and event.part == "intermediary" and bound > most * (1 + 1e-9):
            raise InputError(f"limits.clip_bound_at_most = {most:g}: C = {bound:g} is asked for")
    if not new:
        return
    spent = hospital_epsilon([*before, *new], own_delta)
    if not spent <= limits.epsilon * (1 + 1e-9):
        already = hospital_epsilon(before, own_delta)
        raise InputError(
            f"limits.epsilon = {limits.epsilon:g}: this would bring the hospital to ε = {spent:.4g} "
            f"(δ {own_delta:g}); {already:.4g} is spent"
        )


def refuse_run_beyond_limits(limits: Limits, agreement: Agreement, experiment: Experiment) -> None:
    """Refuses a run that the limits exclude whatever it releases, before a model is built for it."""
    names = [one.name for one in agreement.facts]
    if len(set(names)) < len(names):
        raise InputError("agreement: it names a hospital twice")
    for name, found in (
        ("rounds_at_most", experiment.rounds),
        ("hospitals_at_most", len(names)),
        ("parameters_at_most", agreement.parameters),
    ):
        most = getattr(limits, name)
        if most is not None and found > most:
            raise InputError(f"limits.{name} = {most}: {found} are asked for")
    if experiment.privacy.reproducible and not limits.seeded_noise:
        raise InputError(
            "privacy.entropy = seed: noise from a seed that everybody knows protects nobody; this hospital "
            "takes part with privacy.entropy = system only (limits.seeded_noise)"
        )


def refuse_coordinator_epsilon(limits: Limits, events: Sequence[Event], delta: float, shares: int) -> None:
    """Refuses shared noise that protects too little against the coordinator.

    The coordinator sees single contributions, each with one share of the noise.

    Args:
        limits: of the hospital.
        events: of all rounds.
        delta: the agreement's.
        shares: how many hospitals' shares make up the full noise; 0: the server adds all of it.
    """
    most = limits.coordinator_epsilon
    if most is not None and shares and (seen := against(events, delta, shares).coordinator) > most:
        raise InputError(
            f"limits.coordinator_epsilon = {most:g}: with {shares} shares of noise the coordinator would "
            f"have ε = {seen:.4g}"
        )


def _refuse_other_clip_bound(plan: RoundPlan, experiment: ResolvedExperiment) -> None:
    """Refuses a C that the agreed rule cannot have reached by this round."""
    assert plan.clip_bound is not None, "no plan on the wire is without"
    low, high = experiment.clipping.reach(plan.round)
    if plan.clip_bound < SMALLEST_BOUND or not low * (1 - 1e-6) <= plan.clip_bound <= high * (1 + 1e-6):
        agreed = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        raise InputError(f"plan: C = {plan.clip_bound:g}, and {agreed} was agreed on")


def _refuse_other_update_map(plan: RoundPlan, experiment: ResolvedExperiment) -> None:
    """Refuses a scale of updates that the agreed optimizer does not use in this round."""
    scale, rule = plan.update_map, experiment.server
    fits = scale.per_step == rule.per_step
    fits &= (scale.divisor is not None) == rule.preconditions(plan.round)
    if scale.divisor is not None:
        fits &= bool((scale.divisor.isfinite() & (scale.divisor >= DP2_EPSILON)).all())
    if not fits:
        raise InputError(f"plan: updates in another scale than server.optimizer = {rule.optimizer} has")


def refuse_other_plan(
    plan: RoundPlan, agreement: Agreement, public: Public, start: Tensor, intermediaries: int
) -> None:
    """Refuses a plan that is not exactly what was agreed on.

    Args:
        plan: of the coordinator.
        agreement: that this site has signed.
        public: what follows from it.
        start: (d,) float32 on the CPU, the parameters that round one begins with.
        intermediaries: the v that was agreed on.
    """
    experiment = public.experiment
    if plan.model != agreement.model or len(plan.parameters) != agreement.parameters:
        raise InputError("plan: it is for another model than was agreed on")
    if not bool(plan.parameters.isfinite().all()):
        raise InputError("plan: its parameters are not all finite")
    if plan.round > experiment.rounds:
        raise InputError(f"plan: round {plan.round}, and {experiment.rounds} were agreed on")
    if plan.intermediaries != intermediaries:
        raise InputError(f"plan: v = {plan.intermediaries}, and {intermediaries} was agreed on")
    _refuse_other_clip_bound(plan, experiment)
    _refuse_other_update_map(plan, experiment)
    if plan.round == 1 and not torch.allclose(plan.parameters, start, rtol=1e-4, atol=1e-6):
        raise InputError("plan: round 1 begins with other parameters than were agreed on")
    expected = public.mechanism.events(plan.round, plan.intermediaries, plan.clip_bound, False)
    if plan.events != expected:
        raise InputError("plan: its releases, or the noise on them, are not what was agreed on")
