"""A hospital: its data, its intermediaries, and local training that ends in one clipped sum."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from silodp.clipping import clip_factor, norm
from silodp.cohorts.cohort import HospitalData
from silodp.exchange import HospitalUpdate, Measurements, RoundPlan
from silodp.intermediary import split
from silodp.local_training import LocalTrainer, OptimizerState, average_states, planned_steps, step_normaliser
from silodp.randomness import generator
from silodp.sketch import sketch

_CPU = torch.device("cpu")

log = logging.getLogger("silodp")


class Hospital:
    """One participant. It sees the plan and its own data, and nothing of the other hospitals."""

    def __init__(self, data: HospitalData, trainer: LocalTrainer, signs: Tensor, seed: int) -> None:
        self.name = data.name
        self.parts = {part: examples.to(trainer.device) for part, examples in data.parts.items()}
        self.states: list[OptimizerState] = []  # what local.state lets live on across rounds
        self._trainer = trainer
        self._signs = signs
        self._seed = seed

    def train(self, plan: RoundPlan) -> HospitalUpdate:
        """Splits, trains every intermediary from θ, and adds the clipped differences into one sum."""
        trainer, examples = self._trainer, self.parts["train"]
        # The split depends on v alone: an intermediary is the same images in every round, or its ε would
        # be nobody's.
        parts = split(len(examples), plan.intermediaries, self._generator(_CPU, "split", plan.intermediaries))
        states = self._states_for(plan.intermediaries)
        whole = [torch.zeros_like(plan.parameters)] if plan.clip_bound is not None else []
        norms, sketches, losses = [], [], []
        for number, part in enumerate(parts):
            chance = self._generator(trainer.device, "train", plan.round, number)
            state = states[number] if states else trainer.working_state()
            loss = trainer.train(plan.parameters, examples[part.to(trainer.device)], state, chance)
            update = trainer.model.values.sub_(plan.parameters)  # Δ_ij, in place
            if plan.normalise_steps:
                update /= step_normaliser(planned_steps(len(part), trainer.settings), trainer.settings)
            if plan.divisor is not None:
                update /= plan.divisor
            norms.append(norm(update))
            finite = torch.isfinite(norms[-1])
            # One intermediary whose numbers ran away counts as nothing, and takes nobody else with it.
            update.nan_to_num_(0.0, 0.0, 0.0).mul_(finite)
            losses.append(loss)
            if plan.measure:
                sketches.append(sketch(update, self._signs))
            if plan.clip_bound is None:
                whole.append(update.clone())
            else:
                factor = torch.where(finite, clip_factor(norms[-1], plan.clip_bound), 0.0)
                whole[0].addcmul_(update, factor.to(update.dtype))
        sizes = torch.stack(norms)
        lost = (~torch.isfinite(sizes)).nonzero().flatten().tolist()
        sizes = sizes.nan_to_num(0.0, 0.0, 0.0)
        if lost:
            log.warning(
                "round %d: %s: %d of %d intermediaries gave NaN or infinity and count as nothing",
                plan.round, self.name, len(lost), len(norms),
            )  # fmt: skip
        if self.states:
            for number in lost:  # a NaN in the optimizer's moments would keep it out for good
                self.states[number] = trainer.fresh_state()
        bits = (sizes <= plan.clip_bound).double() - 0.5 if plan.clip_bound is not None else sizes * 0
        return HospitalUpdate(
            self.name,
            torch.stack(whole) if plan.clip_bound is None else whole[0],
            float(bits.sum()),
            len(examples),
            Measurements(sizes, torch.stack(sketches), torch.stack(losses).mean()) if plan.measure else None,
        )

    def _states_for(self, count: int) -> list[OptimizerState]:
        """The kept optimizer states, averaged and handed on where v has changed."""
        if self._trainer.settings.state == "fresh":
            return []
        if not self.states:
            self.states = [self._trainer.fresh_state() for _ in range(count)]
        elif len(self.states) != count:
            self.states = average_states(self.states, count)
        return self.states

    def _generator(self, device: torch.device, *purpose: str | int) -> torch.Generator:
        return generator(device, self._seed, "hospital", self.name, *purpose)

    def evaluate(self, parameters: Tensor, part: str, *, thorough: bool) -> dict[str, float]:
        """Metrics of the model on one part of the hospital's data."""
        task, examples = self._trainer.task, self.parts[part]
        logits = self._trainer.logits(parameters, examples)
        metrics = task.metrics if thorough else task.quick_metrics
        return metrics(logits.cpu(), examples.targets.cpu())
