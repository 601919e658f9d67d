"""What a coordinator and the hospitals agree on before round one: a file that all of them sign.

A site does not trust it: it derives the model, the mechanism and ε itself, from the experiment and the public
facts, and checks them against the agreement and its own limits (`checks.py`).
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import ConfigDict

from silodp.compatibility import refuse_norm_readers
from silodp.errors import InputError, short
from silodp.experiment import Experiment
from silodp.facts import HospitalFacts
from silodp.federation import first_intermediaries
from silodp.files import as_record
from silodp.models.start import carried_starts
from silodp.privacy.accountants import hospital_epsilon
from silodp.privacy.events import Event
from silodp.runs.build import derive, with_origin
from silodp.runs.parts import Public

FORMAT = "silodp agreement 1"
Resolved = TypeVar("Resolved", bound=Experiment)


@dataclass(frozen=True)
class Agreement:
    """A run as all parties sign it.

    Attributes:
        run: its number, 128 random bits in hex.
        experiment: resolved, as TOML.
        facts: of the hospitals, in their order.
        keys: fingerprint of each hospital's signing key.
        model: what the parameters mean, see `FlatModel.identity`.
        parameters: d, the number of trainable parameters.
        epsilon: of all rounds, for a hospital, at `delta`; infinite without noise.
        delta: of that ε.
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
        """Serialises it as JSON; the same agreement gives the same bytes."""
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

    def read_experiment(self) -> Experiment:
        try:
            return Experiment(**tomllib.loads(self.experiment))
        except ValueError as error:
            raise InputError(f"agreement: its experiment is not valid TOML ({error})") from None


def portable(experiment: Resolved) -> Resolved:
    """The experiment with the name of its start file instead of a path of this machine."""
    start = experiment.model.start
    if start is None or Path(start).name == start:
        return experiment
    return experiment.change(model__start=Path(start).name)


def with_start_in(folder: Path, experiment: Experiment) -> Experiment:
    """The experiment with the path of its start file here: the package's own, or one in `folder`."""
    start = experiment.model.start
    if start is None or start in carried_starts():
        return experiment
    if Path(start).name != start or Path(start).suffix != ".safetensors":  # no other file is opened
        raise InputError(f"model.start = {short(start)}: a start is the package's own, or NAME.safetensors")
    path = folder / start
    if not path.is_file():
        raise InputError(f"model.start = {start}: the hospital has no such file among its starts")
    return experiment.change(model__start=str(path))


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuses settings that only work where all hospitals are in one process."""
    refuse_norm_readers(experiment, "do not leave a hospital; choose another rule for a deployment")
    if experiment.participation.members is not None:
        raise InputError(
            f"participation.members = {experiment.participation.members}: every hospital of a deployment's "
            "roster trains; leave it out"
        )
    if experiment.diagnostics:
        raise InputError("diagnostics = true: un-noised statistics do not leave a hospital; set it to false")
    if experiment.checkpoint_every != 1:
        raise InputError(
            f"checkpoint_every = {experiment.checkpoint_every}: sites answer a round once; set it to 1"
        )


def planned_events(public: Public) -> list[Event]:
    """The events of all rounds, with v and z as they are fixed before round one."""
    experiment, mechanism = public.experiment, public.mechanism
    room = {one.name: one.most_intermediaries for one in public.facts}
    v, _ = first_intermediaries(experiment, len(public.model), mechanism.expected_hospitals, room)
    bound = experiment.clipping.first_bound()
    return [
        event
        for number in range(1, experiment.rounds + 1)
        for event in mechanism.events(number, v, bound, False)
    ]


def derive_agreed(
    agreement: Agreement, experiment: Experiment, starts: Path, device: torch.device
) -> tuple[Public, list[Event]]:
    """Derives a run from its agreement: what is public, and the events of all rounds.

    Guarantee: settings, model, start and ε, derived here, are those of the agreement; else InputError.

    Args:
        agreement: to check.
        experiment: the agreement's.
        starts: folder of start files that are not part of the package.
        device: for the model.
    """
    public = derive(with_origin(with_start_in(starts, experiment)), agreement.facts, device)
    found = (portable(public.experiment).to_toml(), public.model.identity, len(public.model))
    if found != (agreement.experiment, agreement.model, agreement.parameters):
        raise InputError("agreement: its model or settings do not follow from its experiment")
    events = planned_events(public)
    price = hospital_epsilon(events, agreement.delta)
    same = price == agreement.epsilon or math.isclose(price, agreement.epsilon, rel_tol=1e-6)
    if agreement.delta != public.experiment.delta or not same:
        raise InputError(f"agreement: it says ε = {agreement.epsilon:.6g}, and its rounds cost {price:.6g}")
    return public, events
