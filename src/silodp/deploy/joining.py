"""An agreement, derived anew by whoever is asked to sign it."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from silodp.deploy.agreement import Agreement, planned_events, portable, with_start_in
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.privacy.accountants import hospital_epsilon
from silodp.privacy.events import Event
from silodp.runs.build import derive, with_origin
from silodp.runs.parts import Public


def derive_agreed(
    agreement: Agreement, experiment: Experiment, starts: Path, device: torch.device
) -> tuple[Public, list[Event]]:
    """What follows from an agreement's experiment and facts, and all events of its rounds.

    Guarantee: its settings, its model and start, and its price came out here as the agreement says them;
    else InputError.

    Args:
        experiment: of the agreement.
        starts: where a start lies that is not the package's own.
        device: for the model.
    """
    public = derive(with_origin(with_start_in(starts, experiment)), agreement.facts, device)
    found = (portable(public.experiment).to_toml(), public.model.identity, len(public.model))
    if found != (agreement.experiment, agreement.model, agreement.parameters):
        raise InputError("agreement: its model or settings do not follow from its experiment")
    events = planned_events(public.experiment, public.facts, public.mechanism, len(public.model))
    price = hospital_epsilon(events, agreement.delta)
    same = price == agreement.epsilon or math.isclose(price, agreement.epsilon, rel_tol=1e-6)
    if agreement.delta != public.experiment.delta or not same:
        raise InputError(f"agreement: it says ε = {agreement.epsilon:.6g}, and its rounds cost {price:.6g}")
    return public, events
