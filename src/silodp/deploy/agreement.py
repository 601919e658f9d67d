"""What a coordinator and the hospitals agree on before round one: a file that all of them sign.

A site takes nothing in it on trust: from the experiment and the public facts it derives the model, the
mechanism and the price by itself, and holds all of it against the limits that its own people have set.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict

from silodp.compatibility import refuse_norm_readers
from silodp.deploy.limits import LARGEST_DELTA, Limits
from silodp.errors import InputError, short
from silodp.experiment import Experiment, ResolvedExperiment
from silodp.facts import HospitalFacts
from silodp.federation import first_intermediaries
from silodp.files import as_record
from silodp.mechanism import Mechanism
from silodp.messages import RoundPlan
from silodp.models.start import carried_starts
from silodp.privacy.accountants import hospital_epsilon
from silodp.privacy.adversaries import against
from silodp.privacy.events import Event
from silodp.server_optimizers import DP2_EPSILON

FORMAT = "silodp agreement 1"
SMALLEST_BOUND = 1e-20  # of a C: far below, products of single-precision numbers are no longer exact enough
Resolved = TypeVar("Resolved", bound=Experiment)


@dataclass(frozen=True)
class Agreement:
    """One run, as everybody signs it.

    Attributes:
        run: its number, 128 random bits in hex.
        experiment: resolved, as TOML.
        facts: of the hospitals, in their order.
        keys: fingerprint of each hospital's signing key.
        model: what the parameters mean, see `FlatModel.identity`.
        parameters: d, how many numbers train.
        epsilon: what all rounds cost a hospital, at `delta`; infinite without noise.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    run: str
    experiment: str
    facts: tuple[HospitalFacts, ...]
    keys: Mapping[str, str]
    model: str
    parameters: int
    epsilon: float
    delta: float

    def to_bytes(self) -> bytes:
        """JSON; the same agreement has the same bytes."""
        fields = {**vars(self), "facts": [one.to_dict() for one in self.facts], "keys": dict(self.keys)}
        fields["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else None
        return (json.dumps({"format": FORMAT, **fields}, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Agreement:
        """Reads an agreement strictly; raises InputError where the bytes are none of this version."""
        try:
            fields: dict[str, Any] = json.loads(content)
            known = fields.pop("format") == FORMAT
            fields["epsilon"] = math.inf if fields["epsilon"] is None else fields["epsilon"]
            agreement = as_record(cls, fields)
            fits = known and set(agreement.keys) == {one.name for one in agreement.facts}
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            fits = False
        if not fits:
            raise InputError("agreement: not one of silodp, or of another version; use the same version")
        return agreement

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def read_experiment(self) -> Experiment:
        try:
            return Experiment(**tomllib.loads(self.experiment))
        except ValueError as error:
            raise InputError(f"agreement: its experiment is no TOML ({error})") from None


def portable(experiment: Resolved) -> Resolved:
    """The experiment with its start by name: where the file lies differs from machine to machine."""
    start = experiment.model.start
    if start is None or Path(start).name == start:
        return experiment
    return experiment.change(model__start=Path(start).name)


def with_start_in(folder: Path, experiment: Experiment) -> Experiment:
    """The experiment with its start where it lies here: among those of the package, else in `folder`."""
    start = experiment.model.start
    if start is None or start in carried_starts():
        return experiment
    if Path(start).name != start or Path(start).suffix != ".safetensors":  # no other file is looked at
        raise InputError(f"model.start = {short(start)}: a start is the package's own, or NAME.safetensors")
    path = folder / start
    if not path.is_file():
        raise InputError(f"model.start = {start}: the hospital has no such file among its starts")
    return experiment.change(model__start=str(path))


def refuse_undeployable(experiment: Experiment) -> None:
    """What only works where all hospitals are in one process."""
    refuse_norm_readers(experiment, "do not leave a hospital; choose another rule for a deployment")
    if experiment.participation.members is not None:
        raise InputError(
            f"participation.members = {experiment.participation.members}: every hospital of a deployment's "
            "roster trains; leave it out"
        )
    if experiment.diagnostics:
        raise InputError("diagnostics = true: un-noised figures do not leave a hospital; set it to false")
    if experiment.checkpoint_every != 1:
        raise InputError(
            f"checkpoint_every = {experiment.checkpoint_every}: sites answer a round once; set it to 1"
        )


def planned_events(
    experiment: ResolvedExperiment, facts: Sequence[HospitalFacts], mechanism: Mechanism, parameters: int
) -> list[Event]:
    """Everything that all rounds will release, v and z as they are fixed before round one."""
    members = experiment.participation.training(facts)
    room = {one.name: one.most_intermediaries for one in members}
    v, _ = first_intermediaries(experiment, parameters, mechanism.expected_hospitals, room)
    bound = experiment.clipping.first_bound()
    return [
        event
        for number in range(1, experiment.rounds + 1)
        for event in mechanism.events(number, v, bound, False)
    ]


def of_one_site(events: Sequence[Event], plan: str = "") -> list[Event]:
    """Events as a hospital counts them: it knows when it took part, and each plan apart from all others."""
    return [
        replace(event, participation="all", sampling_rate=1.0, digest=plan or event.digest)
        for event in events
    ]


def refuse_over_limits(
    limits: Limits,
    before: Sequence[Event],
    new: Sequence[Event],
    delta: float,
) -> None:
    """Refuses what a site's own people have not allowed.

    Args:
        before: what stands in the site's ledger.
        new: what is asked for now, as `of_one_site` has it.
        delta: where the limits name none.
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


def refuse_before_deriving(limits: Limits, agreement: Agreement, experiment: Experiment) -> None:
    """What is refused at a glance: nothing is built for it."""
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


def refuse_near(limits: Limits, events: Sequence[Event], delta: float, shares: int) -> None:
    """Where noise is shared the coordinator sees single contributions, with one share each.

    Args:
        events: of all rounds.
        delta: the agreement's.
        shares: with how many hospitals' shares the noise is full; 0: the server adds it all.
    """
    most = limits.coordinator_epsilon
    if most is not None and shares and (seen := against(events, delta, shares).coordinator) > most:
        raise InputError(
            f"limits.coordinator_epsilon = {most:g}: with {shares} shares of noise the coordinator would "
            f"have ε = {seen:.4g}"
        )


def _refuse_other_bound(plan: RoundPlan, experiment: ResolvedExperiment) -> None:
    """C is what the rule can have come to by this round."""
    assert plan.clip_bound is not None, "no plan on the wire is without"
    low, high = experiment.clipping.reach(plan.round)
    if plan.clip_bound < SMALLEST_BOUND or not low * (1 - 1e-6) <= plan.clip_bound <= high * (1 + 1e-6):
        agreed = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        raise InputError(f"plan: C = {plan.clip_bound:g}, and {agreed} was agreed on")


def _refuse_other_map(plan: RoundPlan, experiment: ResolvedExperiment) -> None:
    """Updates travel in the scale that the agreed optimizer gives them, and in no other."""
    scale, rule = plan.update_map, experiment.server
    fits = scale.per_step == rule.per_step
    fits &= (scale.divisor is not None) == rule.preconditions(plan.round)
    if scale.divisor is not None:
        fits &= bool((scale.divisor.isfinite() & (scale.divisor >= DP2_EPSILON)).all())
    if not fits:
        raise InputError(f"plan: updates in another scale than server.optimizer = {rule.optimizer} has")


def refuse_other_plan(
    plan: RoundPlan,
    experiment: ResolvedExperiment,
    agreement: Agreement,
    mechanism: Mechanism,
    intermediaries: int,
) -> None:
    """A plan is what the agreement says, to the number; else it is refused with what differs."""
    if plan.model != agreement.model or len(plan.parameters) != agreement.parameters:
        raise InputError("plan: it is for another model than was agreed on")
    if not bool(plan.parameters.isfinite().all()):
        raise InputError("plan: its parameters are not all finite")
    if plan.round > experiment.rounds:
        raise InputError(f"plan: round {plan.round}, and {experiment.rounds} were agreed on")
    if plan.intermediaries != intermediaries:
        raise InputError(f"plan: v = {plan.intermediaries}, and {intermediaries} was agreed on")
    _refuse_other_bound(plan, experiment)
    _refuse_other_map(plan, experiment)
    expected = mechanism.events(plan.round, plan.intermediaries, plan.clip_bound, False)
    if plan.events != expected:
        raise InputError("plan: what it would release, or the noise on it, is not what was agreed on")
