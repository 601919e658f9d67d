"""Checks before a run is resumed: the checkpoint is its own, and the number of rounds is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from silodp.errors import InputError
from silodp.experiment import ResolvedExperiment
from silodp.federation import State
from silodp.privacy.events import Event
from silodp.runs.folder import but_for_rounds
from silodp.tensor_files import same_form


def refuse_another(
    folder: Path, checkpoint: Mapping[str, Any], identity: Mapping[str, str], state: State, best: Tensor
) -> None:
    """Refuses a checkpoint of another experiment, cohort or model, or of another form than `state`."""
    for part, value in identity.items():
        found = checkpoint["identity"][part]
        same = but_for_rounds(found) == but_for_rounds(value) if part == "experiment" else found == value
        if not same:
            raise InputError(
                f"{folder}: its checkpoint belongs to another {part}; "
                "give it the one it was started with, or start a new run"
            )
    form = {"state": vars(state), "best": (0, 0.0, best)}
    if not same_form({part: checkpoint[part] for part in form}, form):
        raise InputError(
            f"{folder}: its checkpoint was written by another version of silodp; "
            "resume it with that version, or start a new run"
        )


def refuse_length(
    folder: Path,
    experiment: ResolvedExperiment,
    before: int,
    state: State,
    events: Sequence[Event],
    longer: bool,
) -> None:
    """Refuses a number of rounds that this run cannot have any more.

    Args:
        experiment: with the rounds that are asked for now.
        before: the rounds that experiment.toml says.
        state: of the checkpoint.
        longer: whether the run was over and is to go on.
    """
    rounds, done = experiment.rounds, max([state.round, *(event.round for event in events)])
    anew = f"start a new run with `silodp run {folder / 'experiment.toml'} --set rounds={rounds}`"
    if rounds < done:
        raise InputError(
            f"rounds = {rounds}: {folder} has released {done} already, which nothing takes back; "
            f"give at least {done}"
        )
    if state.stopped is not None and rounds != before:
        raise InputError(
            f"rounds = {rounds}: the budget ended {folder} after round {state.round} ({state.stopped}); "
            f"{anew} and a larger budget.epsilon"
        )
    begun = state.average is not None or state.round > rounds - experiment.averaged_rounds
    if rounds != before and experiment.server.average and state.round and begun:
        raise InputError(
            f"rounds = {rounds}: the model of {folder} is a mean of its last rounds, which have begun "
            f"(server.average = {experiment.server.average:g}); {anew}"
        )
    if longer and state.round and experiment.local.keeps_state:
        raise InputError(
            f"rounds = {rounds}: {folder} is over, and what its hospitals' optimizers had kept went with its "
            f"last round (local.state = kept); {anew}"
            + (", which repeats its rounds" if experiment.privacy.reproducible else "")
        )
