"""A hospital: its data, its intermediaries, and local training that ends in one clipped sum."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from silodp.clipping import clip_factor, norm
from silodp.cohorts.cohort import HospitalData
from silodp.exchange import HospitalUpdate, Measurements, RoundPlan
from silodp.intermediary import split, split_sizes
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
        # be nobody's. Whole patients make unlike parts; the steps are those of equal ones, which are public.
        chance = self._generator(_CPU, "split", plan.intermediaries)
        parts = split(len(examples), plan.intermediaries, chance, examples.patients)
        steps = [planned_steps(n, trainer.settings) for n in split_sizes(len(examples), plan.intermediaries)]
        states = self._states_for(plan.intermediaries)
        whole = [torch.zeros_like(plan.parameters)] if plan.clip_bound is not None else []
        norms, sketches, losses, errors = [], [], [], []
        for number, part in enumerate(parts):
            chance = self._generator(trainer.device, "train", plan.round, number)
            state = states[number] if states else trainer.working_state()
            try:
                mine = examples[part.to(trainer.device)]
                loss = trainer.train(plan.parameters, mine, state, chance, steps[number])
            except Exception as error:
                # A user's own network may refuse an image: that counts like NaN, for this part alone.
                errors.append(error)
                loss = torch.full((), math.nan, device=trainer.device)
                trainer.model.values.fill_(math.nan)
            update = trainer.model.values.sub_(plan.parameters)  # Δ_ij, in place
            if plan.normalise_steps:
                update /= step_normaliser(steps[number], trainer.settings)
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
        lost = ~torch.isfinite(sizes)
        sizes = sizes.nan_to_num(0.0, 0.0, 0.0)
        if self.states:
            for number in lost.nonzero().flatten().tolist():  # NaN in the moments would keep it out for good
                self.states[number] = trainer.fresh_state()
        if len(errors) == len(parts):
            raise errors[-1]  # nothing of this hospital counts, so it may as well be absent
        if lost.any():
            why = f" ({type(errors[-1]).__name__}: {errors[-1]})" if errors else ""
            log.warning(
                "round %d: %s: %d of %d intermediaries failed or gave NaN or infinity and count as nothing%s",
                plan.round, self.name, int(lost.sum()), len(norms), why,
            )  # fmt: skip
        # One that is lost has no bit either: a hospital of which all are lost is as good as an absent one.
        bits = torch.where(lost, 0.0, (sizes <= (plan.clip_bound or 0.0)).double() - 0.5)
        return HospitalUpdate(
            self.name,
            torch.stack(whole) if plan.clip_bound is None else whole[0],
            float(bits.sum()) if plan.clip_bound is not None else 0.0,
            len(examples),
            Measurements(sizes, torch.stack(sketches), torch.stack(losses).nanmean())
            if plan.measure
            else None,
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
