"""Train an experiment into a run folder, or take a run up again where it was killed."""

from __future__ import annotations

import copy
import logging
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from silodp.cohorts import Cohort, load_cohort
from silodp.engines.in_process import InProcess
from silodp.errors import InputError
from silodp.experiment import Experiment, delta_by_rule
from silodp.federation import Round, State, found_federation
from silodp.hospital import Hospital
from silodp.intermediary import ESTIMATING
from silodp.local_training import LocalTrainer, network_input
from silodp.parameters import FlatModel
from silodp.privacy.accountants import Epsilon, spent
from silodp.privacy.ledger import Ledger
from silodp.run_folder import RunFolder, read_experiment, refuse_used
from silodp.sketch import signs
from silodp.tasks import task_named

log = logging.getLogger("silodp")

Metrics = dict[str, float]
OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        folder: where everything lies.
        epsilon: what was spent, for a hospital and for an intermediary.
        test: mean test metrics over the hospitals, of the last round's model.
        summary: the content of summary.json.
        model: the network with the last round's weights.
    """

    folder: Path
    epsilon: Epsilon
    test: Metrics
    summary: dict[str, Any]
    model: nn.Module


def train(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    cohort: Cohort | None = None,
    model: nn.Module | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
) -> Result:
    """Runs an experiment from its first round.

    Args:
        experiment: what to run.
        out: a new folder for the run; default runs/NAME-1, -2, …
        cohort: your own hospitals in place of `experiment.cohort`.
        model: your own network in place of `experiment.model`; it needs one output a class or mask.
        device: "auto", "cpu" or "cuda".
        on_round: called with each line of metrics.jsonl.
    """
    path = Path(out) if out is not None else free_folder(experiment.name)
    refuse_used(path)
    run = _Run(experiment, cohort, model, _device(device))
    folder = RunFolder.create(path, run.experiment)
    try:
        ledger = folder.ledger()
        run.save(folder, ledger)
        return run.finish(folder, ledger, on_round)
    finally:
        folder.let_go()


def resume(
    folder: str | Path,
    *,
    cohort: Cohort | None = None,
    model: nn.Module | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
) -> Result:
    """Goes on from the last checkpoint; a run that had its own cohort or model needs them again."""
    files = RunFolder.open(Path(folder))
    try:
        run = _Run(read_experiment(files.path), cohort, model, _device(device))
        ledger = files.ledger()
        run.restore(files, ledger)
        return run.finish(files, ledger, on_round)
    finally:
        files.let_go()


def free_folder(name: str) -> Path:
    """runs/NAME-k with the first k that is free."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


class _Run:
    """One run in this process: the parts that an experiment names, brought together and checked."""

    def __init__(
        self, experiment: Experiment, cohort: Cohort | None, model: nn.Module | None, device: torch.device
    ) -> None:
        if cohort is not None:
            experiment = experiment.change(cohort__kind="custom")
        if model is not None:
            experiment = experiment.change(model__kind="custom")
        self.cohort = (cohort or load_cohort(experiment.cohort)).check()
        self.experiment = experiment.resolve(len(self.cohort.hospitals), torch.get_num_threads())
        self.task = task_named(experiment.task)
        self._check_targets()
        self.device = device
        self.model = FlatModel(copy.deepcopy(model) if model is not None else self._own_model(), device)
        self.trainer = LocalTrainer(self.model, self.task, experiment.local)
        self._check_fit()
        sketch_signs = signs(len(self.model), device)
        self.engine = InProcess(
            [Hospital(data, self.trainer, sketch_signs, experiment.seed) for data in self.cohort.hospitals]
        )
        self.federation = found_federation(self.experiment, self.cohort, self.engine)
        self.state = self.federation.first_state(self.model.values.clone())
        self.best_round = 0
        self.best_value = -math.inf
        self.best_parameters = self.state.parameters
        self.identity = {
            "experiment": self.experiment.to_toml(),
            "cohort": self.cohort.fingerprint(),
            "model": repr([(name, tuple(p.shape)) for name, p in self.model.module.named_parameters()]),
        }

    def _own_model(self) -> nn.Module:
        from silodp.models import build_model

        settings, hospitals = self.experiment.model, self.cohort.hospitals
        if settings.kind == "custom":
            raise InputError(
                "model.kind = custom: this experiment was given its network from Python; "
                "run it with silodp.train(experiment, model=…)"
            )
        outputs = max(self.task.outputs(hospital.train.targets) for hospital in hospitals)
        return build_model(settings, hospitals[0].train.images.shape[1], outputs, self.experiment.seed)

    def _check_targets(self) -> None:
        shape = tuple(self.cohort.hospitals[0].train.targets.shape)
        if (len(shape) == 4) != (self.task.name == "segmentation"):
            raise InputError(
                f"task = {self.task.name}: the targets have shape {shape}; "
                "segmentation takes (n, 1, h, w) masks, classification (n,) classes"
            )

    @torch.no_grad()
    def _check_fit(self) -> None:
        """Data and network must fit; better now than after the folder is made."""
        hospitals = self.cohort.hospitals
        parts = [len(examples) for hospital in hospitals for examples in hospital.parts.values()]
        # The smallest batch there will be is the one that BatchNorm may refuse.
        fewest = min(2, self.experiment.intermediaries.min_samples, *parts)
        examples = hospitals[0].train[:fewest].to(self.device)
        try:
            self.model.module.train()
            shape = tuple(self.trainer.forward(network_input(examples.images)).shape)
        except InputError:
            raise
        except (RuntimeError, ValueError) as error:
            size, first_line = tuple(examples.images.shape[1:]), str(error).splitlines()[0]
            raise InputError(
                f"model: it cannot train on {fewest} images of shape {size} at a time ({first_line})"
            ) from None
        if self.task.name == "segmentation":
            masks = tuple(examples.targets.shape)
            fits, wanted = shape == masks, f"the masks' {masks}"
        else:
            classes = max(self.task.outputs(hospital.train.targets) for hospital in hospitals)
            fits, wanted = len(shape) == 2 and shape[1] >= classes, f"(n, {classes})"
        if not fits:
            raise InputError(f"model: its output has shape {shape}; give it an output of shape {wanted}")

    def save(self, folder: RunFolder, ledger: Ledger) -> None:
        folder.save_checkpoint(
            {
                "identity": self.identity,
                "ledger": ledger.head,
                "state": vars(self.state),
                "hospitals": self.engine.state(),
                "best": [self.best_round, self.best_value, self.best_parameters],
            }
        )

    def restore(self, folder: RunFolder, ledger: Ledger) -> None:
        checkpoint = folder.load_checkpoint(self.device)
        if checkpoint is None:
            if ledger.events:
                raise InputError(
                    f"{folder.path}: its ledger has releases but its checkpoint is gone; start a new run"
                )
            self.save(folder, ledger)
        else:
            ledger.require(checkpoint["ledger"])
            for part, value in self.identity.items():
                if checkpoint["identity"][part] != value:
                    raise InputError(
                        f"{folder.path}: its checkpoint belongs to another {part}; "
                        "give it the one it was started with, or start a new run"
                    )
            try:
                self.state = State(**checkpoint["state"])
            except TypeError:
                raise InputError(
                    f"{folder.path}: its checkpoint was written by another version of silodp; "
                    "resume it with that version, or start a new run"
                ) from None
            self.engine.restore(checkpoint["hospitals"])
            self.best_round, self.best_value, self.best_parameters = checkpoint["best"]
        folder.keep_metrics(self.state.round)

    def finish(self, folder: RunFolder, ledger: Ledger, on_round: OnRound | None) -> Result:
        """All remaining rounds, then the test."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.experiment.threads or threads)
        try:
            self._train(folder, ledger, on_round)
            return self._result(folder, self._spent(ledger.events))
        finally:
            torch.set_num_threads(threads)

    def _train(self, folder: RunFolder, ledger: Ledger, on_round: OnRound | None) -> None:
        started, capped_at, saved = time.perf_counter(), 0, self.state.round
        for done in self.federation.rounds(self.state, ledger):
            for name, reason in done.release.absent.items():
                log.warning("round %d: %s counts as absent: %s", done.plan.round, name, reason)
            if done.capped and done.plan.intermediaries != capped_at:
                capped_at = done.plan.intermediaries
                log.warning("v is capped at %d: the smallest hospital has no data for more", capped_at)
            validation = self.engine.evaluate(self.state.parameters, "validation", thorough=False)
            started, before = time.perf_counter(), started
            so_far = [event for event in ledger.events if event.round <= done.plan.round]
            record = self._record(done, validation, self._spent(so_far), started - before)
            headline = record["validation"]["mean"][self.task.headline]
            if headline > self.best_value:
                self.best_round, self.best_value = done.plan.round, headline
                self.best_parameters = self.state.parameters
            folder.add_metrics(record)
            if done.plan.round % self.experiment.checkpoint_every == 0:
                self.save(folder, ledger)
                saved = done.plan.round
            if on_round is not None:
                on_round(record)
        if self.state.stopped:
            log.warning("the budget ends the run after round %d: %s", self.state.round, self.state.stopped)
        if saved != self.state.round:
            self.save(folder, ledger)

    def _spent(self, events: list[Any]) -> Epsilon:
        delta = self.experiment.privacy.delta
        assert delta is not None, "the experiment is resolved"
        images = sum(len(hospital.train) for hospital in self.cohort.hospitals)
        return spent(events, delta, image_delta=delta_by_rule(images))

    def _record(
        self, done: Round, validation: dict[str, Metrics], epsilon: Epsilon, seconds: float
    ) -> dict[str, Any]:
        release, unprotected = done.release, done.release.unprotected
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
            "epsilon": asdict(epsilon),
            "train_loss": _mean(unprotected.losses.values()) if unprotected else None,
            "validation": {"mean": mean_metrics(validation), "hospitals": validation},
            "participants": list(done.plan.participants),
            "absent": release.absent,
            "images": release.images,
            "training_seconds": round(done.seconds, 4),
            "seconds": round(seconds, 4),
        }

    def _result(self, folder: RunFolder, epsilon: Epsilon) -> Result:
        rounds = folder.metrics()
        intermediaries = rounds[-1]["intermediaries"] if rounds else self.state.intermediaries
        if not self.best_round:  # the headline metric was never defined
            self.best_round, self.best_parameters = self.state.round, self.state.parameters
        last = self.engine.evaluate(self.state.parameters, "test", thorough=True)
        same = self.best_parameters is self.state.parameters
        best = last if same else self.engine.evaluate(self.best_parameters, "test", thorough=True)
        training_seconds = sum(record["training_seconds"] for record in rounds)
        images = sum(record["images"] for record in rounds) * self.experiment.local.epochs
        summary = {
            "experiment": self.experiment.name,
            "task": self.task.name,
            "headline": self.task.headline,
            "rounds": self.state.round,
            "parameters": len(self.model),
            "epsilon": asdict(epsilon),
            "delta": self.experiment.privacy.delta,
            "noise_multiplier": {
                "hospital": self.experiment.privacy.noise_multiplier / intermediaries,
                "intermediary": self.experiment.privacy.noise_multiplier,
            },
            "intermediaries": intermediaries,
            "budget": self.experiment.budget.model_dump() if self.experiment.budget else None,
            "stopped": self.state.stopped,
            "test": {
                "last": {"round": self.state.round, "mean": mean_metrics(last), "hospitals": last},
                "best": {"round": self.best_round, "mean": mean_metrics(best), "hospitals": best},
            },
            "best_round": self.best_round,
            "not_covered_by_epsilon": _not_covered(self.experiment, epsilon),
            "wall_seconds": round(sum(record["seconds"] for record in rounds), 2),
            "training_seconds": round(training_seconds, 2),
            "images_per_second": round(images / max(training_seconds, 1e-9), 1),
            "device": _device_name(self.device),
            "torch": torch.__version__,
        }
        tensors = self.model.named_tensors(self.state.parameters)
        folder.save_model("model.safetensors", tensors)
        folder.save_model("model-best.safetensors", self.model.named_tensors(self.best_parameters))
        folder.save_summary(summary)
        self.model.values.copy_(self.state.parameters)
        return Result(folder.path, epsilon, mean_metrics(last), summary, self.model.module.eval())


def mean_metrics(hospitals: dict[str, Metrics]) -> Metrics:
    """The plain mean over hospitals, leaving out those for which a metric is not defined."""
    names = next(iter(hospitals.values()))
    return {name: _mean(metrics[name] for metrics in hospitals.values()) for name in names}


def _mean(values: Any) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def _not_covered(experiment: Experiment, epsilon: Epsilon) -> list[str]:
    """What a reader of ε must know that it leaves out."""
    notes = [
        "validation and test metrics, and the choice of the best round by them",
        "the sizes of the training sets",
        "readers who know the seed: they can draw this simulation's noise again",
    ]
    if experiment.diagnostics:
        notes.append("xi, phi, lambda, cosine_std and train_loss in metrics.jsonl (diagnostics = true)")
    if not epsilon.covers_everything:
        if experiment.clipping.rule == "median":
            notes.append("the clip bound: the exact median of the norms (clipping.rule = median)")
        if experiment.intermediaries.rule in ESTIMATING:
            notes.append(
                f"v: estimated from un-noised norms (intermediaries.rule = {experiment.intermediaries.rule})"
            )
    return notes


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {name}: choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch finds no GPU here; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
