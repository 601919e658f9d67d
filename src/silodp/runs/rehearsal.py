"""A rehearsal: trials of a federation on generated hospitals before it begins, to choose its settings.

Guarantee: it depends on the number of hospitals and the sizes of their training sets, which are public, and
not on their images; so its results (the noise that a start tolerates, the local learning rate, the rounds,
what trains) cost no privacy.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silodp.cohorts.cohort import Cohort
from silodp.errors import InputError, short
from silodp.experiment import Experiment
from silodp.models.start import read_start
from silodp.pretraining.hospitals import generated_hospitals
from silodp.privacy.ledger import Ledger
from silodp.runs.record import mean_metrics
from silodp.runs.threads import threads

OnTrial = Callable[[str, float], None]

GRID: dict[str, tuple[Any, ...]] = {
    "local.learning_rate": (0.01, 0.03, 0.1, 0.3),
    "clipping.noise": (0.5, 1.0, 2.0, 4.0),
    "rounds": (10, 20, 30),
    "model.trainable": ("norm+head", "head"),
}
"""The values that are tried, in the order in which the settings are chosen."""
FIRST: dict[str, Any] = {
    "local.learning_rate": 0.1,
    "clipping.noise": 1.0,
    "rounds": 20,
    "model.trainable": "norm+head",
}
"""The value of a setting until it is chosen."""
WORLDS = (0, 1, 2)
"""Seeds of the generated hospitals."""


@dataclass
class Rehearsal:
    """Trials of one experiment in a few worlds of generated hospitals.

    Attributes:
        experiment: with a start of generated images and clipping.rule = rehearsed, its noise and bound open.
        worlds: generated cohorts with the experiment's number and sizes of hospitals.
        device: as for `build`.
        on_trial: called with every trial.
        scores: mean score over the worlds, by settings tried.
    """

    experiment: Experiment
    worlds: Sequence[Cohort]
    device: str = "auto"
    on_trial: OnTrial = lambda tried, score: None
    scores: dict[tuple[tuple[str, Any], ...], float] = field(default_factory=dict)

    def find(self) -> dict[str, Any]:
        """Chooses the open settings one after the other, each with the best values of those before."""
        found = {name: FIRST[name] for name in GRID if name in self.open_settings}
        for name in found:
            found[name] = max(GRID[name], key=lambda value: self.score({**found, name: value}))
        # Refined between the steps of the grid.
        near = [found["clipping.noise"] * factor for factor in (0.7, 1.0, 1.4)]
        best = max(near, key=lambda value: self.score({**found, "clipping.noise": value}))
        return found | {"clipping.noise": float(f"{best:.3g}")}

    @property
    def open_settings(self) -> set[str]:
        """The settings that the experiment leaves open and a rehearsal can choose."""
        said = self.experiment
        settings = {
            "clipping.noise": True,
            "local.learning_rate": "learning_rate" not in said.local.model_fields_set,
            "rounds": "rounds" not in said.model_fields_set and bool(said.budget and said.budget.sets_noise),
            "model.trainable": "trainable" not in said.model.model_fields_set,
        }
        return {name for name, is_open in settings.items() if is_open}

    def score(self, settings: Mapping[str, Any]) -> float:
        """The mean test score of a federation with these settings, over hospitals and worlds."""
        key = tuple(sorted(settings.items()))
        if key not in self.scores:
            changed = self.experiment.change(**{name.replace(".", "__"): value for name, value in key})
            scores = [_final_score(changed, world, self.device) for world in self.worlds]
            self.scores[key] = sum(scores) / len(scores)
            self.on_trial(", ".join(f"{name} = {short(value)}" for name, value in key), self.scores[key])
        return self.scores[key]


def rehearse(
    experiment: Experiment,
    sizes: Sequence[int],
    shape: tuple[int, int, int],
    device: str,
    on_trial: OnTrial,
) -> dict[str, Any]:
    """Settings for an experiment with clipping.rule = rehearsed, from trials on generated hospitals.

    Args:
        experiment: to be run; its own settings are kept, and clipping.noise and clipping.bound are open.
        sizes: of the training sets.
        shape: of an image: channels, height, width.
        device: as for `build`.
        on_trial: called with every trial.
    """
    kind = _generator_of(experiment)
    channels, height, _ = shape
    worlds = [generated_hospitals(kind, sizes, height, channels, seed) for seed in WORLDS]
    return Rehearsal(experiment, worlds, device, on_trial).find()


def _generator_of(experiment: Experiment) -> str:
    """The kind of images that the start was trained on; a rehearsal generates the same kind."""
    start = experiment.model.start
    kind = read_start(start).about.get("kind") if start is not None else None
    if not isinstance(kind, str):
        raise InputError(
            "clipping.rule = rehearsed: rehearsals are held on images like those that the start was made "
            f"from, and model.start = {start} says of none; make one with `silodp pretrain`, or say "
            "clipping.noise"
        )
    return kind


def _final_score(experiment: Experiment, cohort: Cohort, device: str) -> float:
    """The headline metric on the test images, mean over hospitals; NaN counts as 0."""
    from silodp.runs.build import build

    parts = build(
        experiment.change(cohort={"kind": "custom"}, diagnostics=False), cohort=cohort, device=device
    )
    state = parts.first_state()
    with tempfile.TemporaryDirectory() as folder, threads(parts.experiment.threads):
        for _ in parts.federation.rounds(state, Ledger(Path(folder) / "ledger.jsonl")):
            pass
        scores = parts.engine.evaluate(state.model, "test", thorough=False)
    score = mean_metrics({name: one.values for name, one in scores.items()})[parts.task.headline]
    return 0.0 if math.isnan(score) else score
